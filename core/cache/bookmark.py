"""A place in filled caches that measurements come back to, whatever they fed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from ..errors import UnsupportedCache
from .kinds import offset_of


@dataclass(frozen=True)
class Bookmark:
    """The caches and what they held; arrays are held by reference, only a ring's are copied."""

    cache: Sequence[Any]
    held: tuple[tuple[Any, ...], ...]
    offsets: tuple[int | None, ...]

    def put_back(self) -> None:
        """Leave every layer as it was when the bookmark was taken."""
        for layer, arrays, offset in zip(self.cache, self.held, self.offsets, strict=True):
            if isinstance(layer, ArraysCache):
                layer[0], layer[1] = arrays
                if offset is not None:
                    advance: Any = layer.advance
                    advance(offset - (offset_of(layer) or 0))
            elif hasattr(layer, "_idx"):
                layer.keys, layer.values = map(_apart, arrays[:2])
                layer._idx, layer.offset = arrays[2], offset
            else:
                layer.trim(layer.offset - (offset or 0))


def take_bookmark(cache: Sequence[Any]) -> Bookmark:
    """A bookmark at the caches' present position; UnsupportedCache for a class without one."""
    return Bookmark(cache, tuple(map(_held, cache)), tuple(map(offset_of, cache)))


def _held(layer: Any) -> tuple[Any, ...]:
    if isinstance(layer, ArraysCache):
        return layer[0], layer[1]
    if hasattr(layer, "_idx"):  # a ring, which single rows are written into in place
        return _apart(layer.keys), _apart(layer.values), layer._idx
    if isinstance(layer, KVCache) or layer.is_trimmable():
        return ()
    raise UnsupportedCache(f"{type(layer).__name__} cannot come back to an earlier row")


def _apart(array: mx.array | None) -> mx.array | None:
    """Another object with the same contents: item assignment changes objects, not contents."""
    return None if array is None else mx.array(array)
