"""A drafter with the reference's ring cache, to show that nothing else makes its rounds differ.

Upstream (dflash 0.1.0) keeps a sliding layer's context in mlx-lm's RotatingKVCache. Once the window
is full, a round that accepted nothing appends one row, which the ring writes in place of its
oldest; upstream's mask counts rows from the left, so block row t no longer sees the ring's first t
rows, the newest among them. The suite keeps rows in the order of time (context.py), so that every
row sees its whole window. prompts.jsonl was recorded with the ring.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from dflash_suite.drafters.dflash.context import ALL, ContextBuffer
from dflash_suite.drafters.dflash.drafter import DFlashDrafter


class RingBuffer(ContextBuffer):
    """The context of one sliding layer, in the ring's own order."""

    def __init__(self, heads: int, head_dim: int, window: int, dtype: mx.Dtype) -> None:
        super().__init__(heads, head_dim, window, dtype)
        make: Any = RotatingKVCache
        self._ring = make(max_size=window - 1, keep=0)
        self._held: tuple[mx.array, mx.array] | None = None

    @property
    def rows(self) -> int:
        return 0 if self._held is None else int(self._held[0].shape[2])

    def append(self, keys: mx.array, values: mx.array) -> None:
        self._held = self._ring.update_and_fetch(keys, values)

    def with_block(
        self, keys: mx.array, values: mx.array, heads: slice = ALL
    ) -> tuple[mx.array, mx.array]:
        assert self._held is not None
        held_keys, held_values = self._held
        return (
            mx.concatenate([held_keys, keys], axis=2),
            mx.concatenate([held_values, values], axis=2),
        )


class RingDrafter(DFlashDrafter):
    """A loaded drafter whose sliding layers keep their context as the reference does."""

    @classmethod
    def like(cls, drafter: DFlashDrafter) -> RingDrafter:
        """Over the same weights."""
        return cls(drafter.model, drafter.config, drafter._ends, drafter._rope)

    def reset(self, position: int) -> None:
        """As the suite's, with rings; every layer of the drafter slides."""
        super().reset(position)
        config = self.config
        assert config.sliding_window is not None
        self._buffers = [
            RingBuffer(
                config.num_key_value_heads, config.head_dim, config.sliding_window, self._dtype
            )
            for _ in self.model.layers
        ]
