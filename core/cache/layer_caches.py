"""The table of layer caches: one row for a class, and everything that is asked of one layer.

Whoever wants something of a layer's cache asks here, by `class_of(layer)` or one of the functions
below, and never looks at the class itself. A new class of cache is a row in CLASSES, and a
CacheClass of its own (`classes.py`) where none that is there fits.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from .classes import (
    CacheClass,
    FixedCaches,
    GdnCaches,
    KvCaches,
    LayerKind,
    OtherKvCaches,
    RecurrentCaches,
    RingCaches,
    SlidingCaches,
)
from .fixed import FixedKVCache
from .recurrent import Cut, GdnCache, Held
from .sliding import SlidingCache

CLASSES: tuple[tuple[type, CacheClass], ...] = (
    (GdnCache, GdnCaches()),
    (ArraysCache, RecurrentCaches()),
    (SlidingCache, SlidingCaches()),
    (RotatingKVCache, RingCaches()),
    (FixedKVCache, FixedCaches()),
    (KVCache, KvCaches()),
)
"""The first row whose class a cache is an instance of; a subclass stands before its base."""
OTHER_KV, UNKNOWN = OtherKvCaches(), CacheClass()


_FOUND: dict[type, CacheClass] = {}


def class_of(layer: Any) -> CacheClass:
    """The row of a layer's cache; one that knows nothing for a class that is in no row."""
    found = _FOUND.get(type(layer))
    if found is None:
        other = OTHER_KV if hasattr(layer, "update_and_fetch") else UNKNOWN
        found = next((row for known, row in CLASSES if isinstance(layer, known)), other)
        _FOUND[type(layer)] = found
    return found


def kind_of(layer: Any) -> LayerKind:
    """What sort of layer a cache belongs to."""
    return class_of(layer).kind


def offset_of(layer: Any) -> int | None:
    """Tokens a layer's cache has seen; None for a stock recurrent cache, which cannot say."""
    return class_of(layer).offset(layer)


def window_of(layer: Any) -> int | None:
    """Rows that a layer's token sees, itself included; None where it sees all before it."""
    return class_of(layer).window(layer)


def can_drop(layer: Any, count: int) -> bool:
    """Whether a KV layer's cache can forget its last `count` rows and stay right."""
    return class_of(layer).can_go_back(layer, count, None)


def drop_rows(layer: Any, count: int) -> None:
    """Forget the last `count` rows of a KV layer's cache, which can_drop said is possible."""
    class_of(layer).go_back(layer, count, None)


def held_rows(layer: Any) -> list[mx.array]:
    """What a layer's cache means for the next token: a recurrent one's arrays; of a KV cache the
    keys and values of the rows that may still be seen, oldest first."""
    return class_of(layer).rows(layer)


def cut_of(layer: Any) -> Cut | None:
    """The cut that a recurrent cache holds and nobody has read; None where there are arrays."""
    return class_of(layer).cut(layer)


def put(layer: Any, held: Held) -> None:
    """Make `held` what a recurrent layer's cache holds; mlx-lm's own class cannot wait."""
    class_of(layer).put(layer, held)
