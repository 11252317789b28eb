"""The context of an MTP head: keys and values of the pairs that it has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ...core.cache.kinds import compact_cache, fork_cache
from ...core.checkpoint.mlx_models import model_module


class HeadCache:
    """The head's keys and values; row i belongs to absolute position `start` + i."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._rows: Any = model_module("cache").KVCache()

    @property
    def rows(self) -> int:
        """Rows held."""
        return int(self._rows.offset)

    @property
    def offset(self) -> int:
        """Absolute position of the next row, by which mlx-lm's attention turns RoPE."""
        return self.start + self.rows

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows; returns all of them."""
        fetched: tuple[mx.array, mx.array] = self._rows.update_and_fetch(keys, values)
        return fetched

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        """Causal over the rows held, as mlx-lm makes it."""
        return self._rows.make_mask(*args, **kwargs)

    def trim(self, count: int) -> None:
        """Forget the last `count` rows."""
        self._rows.trim(count)

    def fork(self) -> HeadCache:
        """The same rows in buffers of their own."""
        made = HeadCache(self.start)
        (made._rows,) = fork_cache([self._rows])
        return made

    def compact(self) -> None:
        """Keep no memory but that of the rows held."""
        compact_cache([self._rows])

    def arrays(self) -> list[mx.array]:
        """The buffers, where there are any yet."""
        return [array for array in (self._rows.keys, self._rows.values) if array is not None]


@dataclass(frozen=True)
class HeadMark:
    """Where an MTP drafter stood: its position, its rows, the pending hidden row."""

    position: int
    rows: int
    pending: mx.array | None
    anchor_fed: bool

    def arrays(self) -> list[mx.array]:
        """All that the mark keeps alive."""
        return [] if self.pending is None else [self.pending]
