"""A recurrent layer's cache, and the cut that it can hold unread in place of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache


@dataclass(frozen=True, eq=False)
class Cut:
    """A window and a state that nobody has sliced out yet: those after a block's first `keep` rows.

    windows: (1, kernel - 1 + T, channels), the rows before the block and its own; states: (T, value
    heads, value dim, key dim), after each row; keep: 1 to T.
    """

    windows: mx.array
    states: mx.array
    keep: int

    @property
    def rows(self) -> int:
        """T, of the whole block."""
        return self.states.shape[0]

    @cached_property
    def arrays(self) -> tuple[mx.array, mx.array]:
        """The window (1, kernel - 1, channels) and the state (1, ...), sliced at the first call."""
        before = self.windows.shape[1] - self.rows
        window = self.windows[:, self.keep : self.keep + before]
        return window, self.states[self.keep - 1 : self.keep]


Held = Cut | tuple[mx.array, mx.array]
"""What a recurrent layer's cache holds: (window, state), or the cut that will give them."""


class GdnCache(ArraysCache):
    """mlx-lm's recurrent cache, plus the number of tokens it has seen.

    Entry 0 is the convolution window (1, kernel - 1, channels), entry 1 the float32 state
    (1, value heads, value dim, key dim). A Cut stands for both until somebody reads them.
    """

    cut: Cut | None

    def __init__(self, size: int = 2, left_padding: list[int] | None = None) -> None:
        super().__init__(size, left_padding)
        self.offset = 0

    @property
    def cache(self) -> list[Any]:
        """The arrays, as every method of mlx-lm's reads them: a cut is made now."""
        if self.cut is not None:
            self.cache = list(self.cut.arrays)
        return self._arrays

    @cache.setter
    def cache(self, arrays: list[Any]) -> None:
        self._arrays, self.cut = arrays, None

    def defer(self, cut: Cut) -> None:
        """Hold what `cut` gives, sliced when it is read: a rollback that nobody reads is free."""
        self._arrays, self.cut = [], cut

    def advance(self, N: int) -> None:
        """Count N more tokens; called by the layer, ours or mlx-lm's own."""
        advance: Any = super().advance
        advance(N)
        self.offset += N

    def size(self) -> int:
        """Tokens seen."""
        return self.offset

    @property
    def state(self) -> Any:
        """Arrays, padding and lengths as mlx-lm's, then the offset."""
        return (*super().state, self.offset)

    @state.setter
    def state(self, value: Any) -> None:
        self.cache, self.left_padding, self.lengths, self.offset = value
