"""The target's caches: what kind a list of them is, where it stands, and our own sliding class.

A hybrid target has a recurrent cache per Gated DeltaNet layer and a KV cache per attention layer;
a plain transformer has KV caches only, of which some may slide.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from ..errors import CacheError, UnsupportedCache
from .recurrent import GdnCache, cut_of

CacheKind = Literal["Hybrid", "KV", "empty", "unknown"]


class SlidingCache(RotatingKVCache):
    """mlx-lm's sliding-window cache, whose last block can be dropped after the ring has wrapped.

    A block of T rows leaves the window's max_size - 1 rows before it and itself, in temporal
    order, so that any kept row still finds its whole window: a rollback only cuts the end off,
    nothing was overwritten and no copy is kept. A single row is written into the ring, in place
    of the oldest one, and cannot be taken back.
    """

    def can_drop(self, count: int) -> bool:
        """True where the rows that remain fill the window, or are all that ever were."""
        held = min(self.offset, 0 if self.keys is None else self.keys.shape[2])
        after = self.offset - count
        return 0 <= count <= held and held - count >= min(after, self.max_size)

    def is_trimmable(self) -> bool:
        """Whether the last row can be dropped."""
        return self.can_drop(1)

    def trim(self, n: int) -> int:
        """Forget the last n rows; 0, and nothing changed, where the window could not be kept."""
        if n == 0 or not self.can_drop(n):
            return 0
        in_order: Any = self._temporal_order
        self.keys = in_order(self.keys)[..., :-n, :]
        self.values = in_order(self.values)[..., :-n, :]
        self.offset -= n
        self._idx = self.keys.shape[2]
        return n


def own_caches(stock: Sequence[Any]) -> list[Any]:
    """mlx-lm's fresh caches, the sliding ones as SlidingCache."""
    make_sliding: Any = SlidingCache
    return [
        make_sliding(layer.max_size, layer.keep) if type(layer) is RotatingKVCache else layer
        for layer in stock
    ]


def can_drop(layer: Any, count: int) -> bool:
    """Whether a KV layer's cache can forget its last `count` rows and stay right."""
    offset = offset_of(layer)
    if offset is None or offset < count:
        return False
    if isinstance(layer, SlidingCache):
        return layer.can_drop(count)
    return bool(layer.is_trimmable())


def cache_kind(cache: Sequence[Any]) -> CacheKind:
    """What a cache list is, by the classes of its layers."""
    if len(cache) == 0:
        return "empty"
    if any(isinstance(layer, ArraysCache) for layer in cache):
        return "Hybrid"
    if all(hasattr(layer, "update_and_fetch") for layer in cache):
        return "KV"
    return "unknown"


def require_kind(cache: Sequence[Any], expected: CacheKind, recurrent: Sequence[bool]) -> None:
    """Raise UnsupportedCache unless `cache` fits a target whose layer i is recurrent or not.

    The message names both kinds (R25); a list of the wrong length or with a layer of the wrong
    class is refused too, so that `zip` can never drop a decoder layer.
    """
    require_list_kind(cache, expected)
    if len(cache) != len(recurrent):
        raise UnsupportedCache(
            f"the target has {len(recurrent)} layers and the cache has {len(cache)}: make it "
            "with the target's own make_cache()"
        )
    for index, (layer, is_recurrent) in enumerate(zip(cache, recurrent, strict=True)):
        if isinstance(layer, ArraysCache) != is_recurrent:
            kind = "recurrent" if is_recurrent else "KV"
            raise UnsupportedCache(
                f"layer {index} needs a {kind} cache, got {type(layer).__name__}"
            )
        padded = getattr(layer, "lengths", None), getattr(layer, "left_padding", None)
        if any(entry is not None for entry in padded):
            raise UnsupportedCache(
                f"layer {index} has a padded batch cache; one sequence at a time is decoded"
            )


def require_list_kind(cache: Sequence[Any], expected: CacheKind) -> None:
    """Raise UnsupportedCache, naming both kinds, unless the list is of the expected one (R25)."""
    found = cache_kind(cache)
    if found != expected:
        raise UnsupportedCache(
            f"expected {expected} cache, got {found}: make it with the target's own make_cache()"
        )


def offset_of(layer: Any) -> int | None:
    """Tokens a layer's cache has seen; None for a stock recurrent cache, which cannot say."""
    offset = getattr(layer, "offset", None)
    return int(offset) if offset is not None else None


def window_of(layer: Any) -> int | None:
    """Rows that a layer's token sees, itself included; None where it sees all before it."""
    window = getattr(layer, "window", None) or getattr(layer, "max_size", None)
    return int(window) if window is not None else None


def validate_absolute_boundary(cache: Sequence[Any], expected: int) -> None:
    """R30: every layer stands at `expected` tokens, else CacheError names the first other one."""
    for index, layer in enumerate(cache):
        offset = offset_of(layer)
        if offset is not None and offset != expected:
            raise CacheError(
                f"layer {index} of the cache stands at {offset} tokens, expected {expected}"
            )


def fork_cache(cache: Sequence[Any]) -> list[Any]:
    """The same contents in caches of their own: what one is fed later, the other never sees."""
    return [_fork(layer) for layer in cache]


def _fork(layer: Any) -> Any:
    forked = copy.copy(layer)
    if isinstance(layer, ArraysCache):
        forked.cache = list(layer.cache)
    else:  # mlx writes into a KV buffer in place: mx.array gives a buffer of its own
        for name in ("keys", "values"):
            rows = getattr(layer, name)
            setattr(forked, name, None if rows is None else mx.array(rows))
    return forked


def held_rows(layer: Any) -> list[mx.array]:
    """What a layer's cache means for the next token: a recurrent one's arrays; of a KV cache the
    keys and values of the rows that may still be seen, oldest first."""
    if isinstance(layer, ArraysCache):
        held: Sequence[mx.array | None] = layer.cache
        return [array for array in held if array is not None]
    if layer.keys is None:
        return []
    if isinstance(layer, RotatingKVCache):
        in_order: Any = layer._temporal_order
        seen = min(layer.offset, layer.max_size)
        return [in_order(rows)[..., -seen:, :] for rows in (layer.keys, layer.values)]
    return [rows[..., : layer.offset, :] for rows in (layer.keys, layer.values)]


def cache_arrays(cache: Sequence[Any]) -> list[mx.array]:
    """Every array that the caches hold, for one evaluation; of a cut what it is cut from."""
    arrays: list[mx.array] = []
    for layer in cache:
        cut = cut_of(layer)
        if cut is not None:
            found: Sequence[mx.array | None] = [cut.windows, cut.states]
        elif isinstance(layer, ArraysCache):
            found = layer.cache
        else:
            found = [layer.keys, layer.values]
        arrays.extend(array for array in found if array is not None)
    return arrays


__all__ = [
    "CacheKind",
    "GdnCache",
    "KVCache",
    "SlidingCache",
    "cache_arrays",
    "cache_kind",
    "can_drop",
    "fork_cache",
    "held_rows",
    "offset_of",
    "own_caches",
    "require_kind",
    "require_list_kind",
    "validate_absolute_boundary",
    "window_of",
]
