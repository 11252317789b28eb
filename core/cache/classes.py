"""What can be done with a layer's cache, by its class; `layer_caches.py` has the table.

Going back is one operation for all: forget the last rows, given what the layer held before them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from ..errors import UnsupportedCache
from .recurrent import Cut, Held

LayerKind = Literal["recurrent", "KV", "unknown"]


@dataclass(frozen=True)
class RingRows:
    """A copy of what a ring holds: its single rows are written in place."""

    keys: mx.array | None
    values: mx.array | None
    index: int


LayerHeld = Held | RingRows | None
"""What one layer's cache needs, beside its number of tokens, to go back to where it stood: a
recurrent one its arrays, a ring a copy, a cache that only grows nothing."""


def held_arrays(held: LayerHeld) -> list[mx.array]:
    """The arrays in it."""
    if held is None:
        return []
    if isinstance(held, RingRows):
        return _there([held.keys, held.values])
    return _there(held.arrays if isinstance(held, Cut) else held)


class CacheClass:
    """The caches of a class that the suite does not know; base of those that it knows.

    kind: what sort of layer they belong to; rolls_back: every rollback of the decode loop knows
    them; takes_back_any_row: a row can be taken back wherever the cache stands.
    """

    kind: LayerKind = "unknown"
    rolls_back = False
    takes_back_any_row = False

    def offset(self, layer: Any) -> int | None:
        """Tokens seen; None for a class that does not count."""
        offset = getattr(layer, "offset", None)
        return int(offset) if offset is not None else None

    def window(self, layer: Any) -> int | None:
        """Rows that a token sees, itself included; None where it sees all before it."""
        return None

    def can_go_back(self, layer: Any, count: int, held: LayerHeld) -> bool:
        """Whether the last `count` rows can be forgotten, given what the layer held before."""
        return False

    def go_back(self, layer: Any, count: int, held: LayerHeld) -> None:
        """Forget the last `count` rows, which can_go_back said is possible."""
        raise self._no_way_back(layer)

    def hold(self, layer: Any, lasting: bool) -> LayerHeld:
        """What go_back will need. lasting: whatever is fed from now on; else as long as the rows
        since then can be dropped. UnsupportedCache where there is no lasting way."""
        if lasting:
            raise self._no_way_back(layer)
        return None

    def fork(self, layer: Any) -> Any:
        """The same contents in a cache of its own."""
        return copy.deepcopy(layer)

    def compact(self, layer: Any) -> None:
        """Keep no more memory than the rows in use need, where that can be."""

    def arrays(self, layer: Any) -> list[mx.array]:
        """Every array that it keeps."""
        return []

    def rows(self, layer: Any) -> list[mx.array]:
        """What it means for the next token."""
        return self.arrays(layer)

    def put(self, layer: Any, held: Held) -> None:
        """Make `held` what a recurrent layer's cache holds."""
        raise UnsupportedCache(f"a {type(layer).__name__} is not a recurrent layer's cache")

    def cut(self, layer: Any) -> Cut | None:
        """The cut that a recurrent cache holds and nobody has read; None where there is none."""
        return None

    def holds(self, layer: Any, held: Held) -> bool:
        """Whether a recurrent cache has `held` itself in it, no matter who has read it."""
        return False

    def _no_way_back(self, layer: Any) -> UnsupportedCache:
        return UnsupportedCache(f"{type(layer).__name__} cannot come back to an earlier row")


class RecurrentCaches(CacheClass):
    """mlx-lm's recurrent cache: a window and a state, of which only what was held comes back."""

    kind = "recurrent"
    takes_back_any_row = True

    def can_go_back(self, layer: Any, count: int, held: LayerHeld) -> bool:
        return held is not None and not isinstance(held, RingRows) and count >= 0

    def go_back(self, layer: Any, count: int, held: LayerHeld) -> None:
        if held is None or isinstance(held, RingRows):
            raise self._no_way_back(layer)
        self.put(layer, held)
        layer.advance(-count)

    def hold(self, layer: Any, lasting: bool) -> LayerHeld:
        """By reference; a cut is made now, so that its whole block is not kept alive. lasting: not
        as parts of larger arrays either."""
        window, state = layer[0], layer[1]
        if not lasting or window is None or state is None:
            return window, state
        return mx.contiguous(window), mx.contiguous(state)

    def fork(self, layer: Any) -> Any:
        forked = copy.copy(layer)
        forked.cache = list(layer.cache)
        return forked

    def arrays(self, layer: Any) -> list[mx.array]:
        return _there(layer.cache)

    def put(self, layer: Any, held: Held) -> None:
        """This class cannot wait, and makes a cut at once."""
        layer[0], layer[1] = held.arrays if isinstance(held, Cut) else held

    def holds(self, layer: Any, held: Held) -> bool:
        cut = self.cut(layer)
        if cut is not None:
            return cut is held
        window, state = held.arrays if isinstance(held, Cut) else held
        return layer[0] is window and layer[1] is state


class GdnCaches(RecurrentCaches):
    """The suite's own recurrent cache, which counts its tokens and can hold a cut unread."""

    rolls_back = True

    def arrays(self, layer: Any) -> list[mx.array]:
        """Of a cut what it is cut from."""
        cut = layer.cut
        return super().arrays(layer) if cut is None else [cut.windows, cut.states]

    def rows(self, layer: Any) -> list[mx.array]:
        return _there(layer.cache)

    def put(self, layer: Any, held: Held) -> None:
        if isinstance(held, Cut):
            layer.defer(held)
        else:
            super().put(layer, held)

    def cut(self, layer: Any) -> Cut | None:
        cut: Cut | None = layer.cut
        return cut


class OtherKvCaches(CacheClass):
    """Keys and values in a class that says of itself whether it can be trimmed."""

    kind = "KV"

    def window(self, layer: Any) -> int | None:
        window = getattr(layer, "window", None) or getattr(layer, "max_size", None)
        return int(window) if window is not None else None

    def can_go_back(self, layer: Any, count: int, held: LayerHeld) -> bool:
        offset = self.offset(layer)
        if held is not None or offset is None or not 0 <= count <= offset:
            return False
        return self._can_trim(layer, count)

    def go_back(self, layer: Any, count: int, held: LayerHeld) -> None:
        layer.trim(count)

    def hold(self, layer: Any, lasting: bool) -> LayerHeld:
        return None if layer.is_trimmable() else super().hold(layer, lasting)

    def fork(self, layer: Any) -> Any:
        """mlx writes into a KV buffer in place: mx.array gives a buffer of its own."""
        forked = copy.copy(layer)
        forked.keys, forked.values = _apart(layer.keys), _apart(layer.values)
        return forked

    def arrays(self, layer: Any) -> list[mx.array]:
        return _there([layer.keys, layer.values])

    def rows(self, layer: Any) -> list[mx.array]:
        """Keys and values of the rows that may still be seen, oldest first."""
        return [rows[..., : layer.offset, :] for rows in self.arrays(layer)]

    def _can_trim(self, layer: Any, count: int) -> bool:
        return bool(layer.is_trimmable())


class KvCaches(OtherKvCaches):
    """A buffer of which any number of rows can be dropped: mlx-lm's, and the fixed one."""

    rolls_back = True
    takes_back_any_row = True

    def compact(self, layer: Any) -> None:
        if layer.keys is not None:
            layer.keys = mx.contiguous(layer.keys[..., : layer.offset, :])
            layer.values = mx.contiguous(layer.values[..., : layer.offset, :])


class FixedCaches(KvCaches):
    """A buffer that stays as large as it is."""

    def compact(self, layer: Any) -> None:
        return


class RingCaches(OtherKvCaches):
    """mlx-lm's ring: once it has wrapped, only a copy of its rows comes back."""

    def can_go_back(self, layer: Any, count: int, held: LayerHeld) -> bool:
        if isinstance(held, RingRows):
            return bool(0 <= count <= layer.offset)
        return super().can_go_back(layer, count, held)

    def go_back(self, layer: Any, count: int, held: LayerHeld) -> None:
        if not isinstance(held, RingRows):
            super().go_back(layer, count, held)
            return
        layer.keys, layer.values = _apart(held.keys), _apart(held.values)
        layer._idx = held.index
        layer.offset -= count

    def hold(self, layer: Any, lasting: bool) -> LayerHeld:
        if not lasting:
            return None
        return RingRows(_apart(layer.keys), _apart(layer.values), layer._idx)

    def rows(self, layer: Any) -> list[mx.array]:
        seen = min(layer.offset, layer.max_size)
        return [layer._temporal_order(rows)[..., -seen:, :] for rows in self.arrays(layer)]


class SlidingCaches(RingCaches):
    """The suite's own ring, whose last block can be dropped after it has wrapped."""

    rolls_back = True

    def _can_trim(self, layer: Any, count: int) -> bool:
        return bool(layer.can_drop(count))


def _apart(array: mx.array | None) -> mx.array | None:
    """Another object with the same contents: item assignment changes objects, not contents."""
    return None if array is None else mx.array(array)


def _there(arrays: Sequence[mx.array | None]) -> list[mx.array]:
    return [array for array in arrays if array is not None]
