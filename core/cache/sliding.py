"""The suite's own sliding-window cache."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import RotatingKVCache


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
