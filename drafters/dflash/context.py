"""Context keys and values of a drafter's layers, projected once per committed row.

A preallocated buffer with a scratch tail: the block's own rows are written behind the context,
attended to, and overwritten by the next rows. A sliding layer keeps its last window - 1 rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mlx.core as mx

GROWTH_ROWS = 256
"""Rows by which a buffer grows, and by which a sliding one may run over before it is moved."""
ALL = slice(None)
HeldRows = tuple[mx.array, mx.array]
"""Keys and values of a sliding context, which nobody writes to."""


@dataclass(frozen=True)
class ContextMark:
    """Where a drafter's context stood: its position, and what its sliding buffers held then; no
    windows where the way back is too short for them to have slid on."""

    position: int
    windows: tuple[HeldRows | None, ...] = ()

    def arrays(self) -> list[mx.array]:
        """All that the mark keeps alive."""
        return [array for held in self.windows if held is not None for array in held]


class ContextBuffer:
    """Keys and values (1, heads, rows, head_dim); `rows` of them are context. Layers that see
    equally far can share one, their key heads side by side."""

    def __init__(self, heads: int, head_dim: int, window: int | None, dtype: mx.Dtype) -> None:
        self.heads = heads
        self._head_dim = head_dim
        self._keep = None if window is None else window - 1
        self._dtype = dtype
        self._keys = self._zeros(0)
        self._values = self._zeros(0)
        self._start = 0
        self._end = 0

    @property
    def rows(self) -> int:
        """Context rows that a block can see."""
        return self._end - self._start

    @property
    def start(self) -> int:
        """Buffer row of the first context row."""
        return self._start

    @property
    def capacity(self) -> int:
        """Rows that the buffer has memory for."""
        return int(self._keys.shape[2])

    def bytes_for(self, tokens: int) -> int:
        """Of the two buffers after so many tokens."""
        rows = tokens if self._keep is None else min(tokens, self._keep)
        return 2 * (rows + GROWTH_ROWS) * self.heads * self._head_dim * self._dtype.size

    def arrays(self) -> list[mx.array]:
        """The two buffers."""
        return [self._keys, self._values]

    def reserve(self, count: int) -> None:
        """Have memory for `count` rows behind the context."""
        if self._end + count > self.capacity:
            self._make_room(count)

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Add context rows; a sliding layer forgets what no later row can see."""
        count = keys.shape[2]
        if self._keep is not None and count > self._keep:
            keys, values = keys[:, :, count - self._keep :], values[:, :, count - self._keep :]
            count = self._keep
            self._start = self._end = 0
        self._write(keys, values)
        self._end += count
        if self._keep is not None:
            self._start = max(self._start, self._end - self._keep)

    def hold(self) -> HeldRows | None:
        """The context of a sliding layer, for `put`; None where it can simply be cut back."""
        if self._keep is None:
            return None
        live = slice(self._start, self._end)
        return mx.contiguous(self._keys[:, :, live]), mx.contiguous(self._values[:, :, live])

    def put(self, held: HeldRows) -> None:
        """Make these rows the context; they are not written to."""
        self._keys, self._values = mx.array(held[0]), mx.array(held[1])
        self._start, self._end = 0, int(held[0].shape[2])

    def fork(self) -> Self:
        """The same rows in a buffer of its own: what is written to one, the other never sees."""
        made = copy.copy(self)
        made._keys, made._values = mx.array(self._keys), mx.array(self._values)
        return made

    def compact(self) -> None:
        """Keep no memory but that of the context rows."""
        live = slice(self._start, self._end)
        self._keys = mx.contiguous(self._keys[:, :, live])
        self._values = mx.contiguous(self._values[:, :, live])
        self._start, self._end = 0, self.rows

    def drop(self, count: int) -> None:
        """Forget the last `count` rows; what slid out of a window's sight is seen again as far as
        it still stands in the buffer."""
        self._end = max(0, self._end - count)
        lowest = 0 if self._keep is None else max(0, self._end - self._keep)
        self._start = min(max(lowest, 0), self._end)

    def with_block(
        self, keys: mx.array, values: mx.array, heads: slice = ALL
    ) -> tuple[mx.array, mx.array]:
        """(keys, values) of the context and the block behind it, of these heads; the block is not
        kept."""
        keys, values, live = self.whole_with_block(keys, values, heads)
        return keys[:, :, live], values[:, :, live]

    def whole_with_block(
        self, keys: mx.array, values: mx.array, heads: slice = ALL
    ) -> tuple[mx.array, mx.array, slice]:
        """As with_block, but all rows of the buffers, and which of them count."""
        self._write(keys, values, heads)
        live = slice(self._start, self._end + keys.shape[2])
        return self._keys[:, heads], self._values[:, heads], live

    def _write(self, keys: mx.array, values: mx.array, heads: slice = ALL) -> None:
        """Put rows behind the context, making room first."""
        self.reserve(keys.shape[2])
        end = self._end + keys.shape[2]
        self._keys[:, heads, self._end : end] = keys
        self._values[:, heads, self._end : end] = values

    def _make_room(self, count: int) -> None:
        """Move the live context to the front of a buffer that has room for `count` more."""
        rows = self.rows
        spare = GROWTH_ROWS if self._keep is not None else max(GROWTH_ROWS, rows // 2)
        room = self._zeros(count + spare)
        live = slice(self._start, self._end)
        self._keys = mx.concatenate([self._keys[:, :, live], room], axis=2)
        self._values = mx.concatenate([self._values[:, :, live], room], axis=2)
        self._start, self._end = 0, rows

    def _zeros(self, rows: int) -> mx.array:
        return mx.zeros((1, self.heads, rows, self._head_dim), dtype=self._dtype)


class HeadsOf:
    """The context of one of the layers that share a buffer: `count` heads from `first` on."""

    def __init__(self, buffer: ContextBuffer, first: int, count: int) -> None:
        self._buffer = buffer
        self._heads = slice(first, first + count)

    @property
    def rows(self) -> int:
        """As ContextBuffer's."""
        return self._buffer.rows

    def with_block(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As ContextBuffer's."""
        return self._buffer.with_block(keys, values, self._heads)

    def whole_with_block(
        self, keys: mx.array, values: mx.array
    ) -> tuple[mx.array, mx.array, slice]:
        """As ContextBuffer's."""
        return self._buffer.whole_with_block(keys, values, self._heads)


def join_heads(parts: Sequence[mx.array]) -> mx.array:
    """(1, heads, n, D) of several layers side by side."""
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts), axis=1)
