"""A target's fresh caches, made of mlx-lm's own: its rings as the suite's, or all keys fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import RotatingKVCache

from ..errors import CacheError, UnsupportedCache
from .fixed import FixedKVCache
from .layer_caches import kind_of, window_of
from .sliding import SlidingCache

CAPACITY_STEP = 256
MOST_ROWS = 1 << 24
"""Of a request; a bound that a mask can still count."""


def own_caches(stock: Sequence[Any]) -> list[Any]:
    """mlx-lm's fresh caches, the sliding ones as SlidingCache."""
    make_sliding: Any = SlidingCache
    return [
        make_sliding(layer.max_size, layer.keep) if type(layer) is RotatingKVCache else layer
        for layer in stock
    ]


def fixed_caches(fresh: Sequence[Any], rows: int) -> list[Any]:
    """The caches of `fresh`, its KV caches with room for `rows` tokens; recurrent ones as they are.

    Raises UnsupportedCache for a sliding cache that keeps its first rows for ever, CacheError for
    more rows than any device has memory for.
    """
    if rows > MOST_ROWS:
        raise CacheError(
            f"{rows:,} tokens are too many for a cache of a fixed size, which takes "
            f"{MOST_ROWS:,}: ask for fewer tokens, or run with --no-exact"
        )
    capacity = -(-rows // CAPACITY_STEP) * CAPACITY_STEP
    layers = sum(kind_of(layer) == "KV" for layer in fresh)
    return [_fixed(layer, capacity, layers) for layer in fresh]


def _fixed(layer: Any, capacity: int, layers: int) -> Any:
    if kind_of(layer) != "KV":
        return layer
    if getattr(layer, "keep", 0):
        raise UnsupportedCache(
            f"a {type(layer).__name__} that keeps its first {layer.keep} rows has no fixed form"
        )
    return FixedKVCache(capacity, window_of(layer), layers)
