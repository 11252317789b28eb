"""Plain decoding on a GPU: the next pass is queued before the last one's id is read.

The host then builds a pass while the device runs one, as mlx-lm's own generate_step does. A pass
that turns out not to be wanted, because the answer ended, is taken back bitwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..cache.place import Place, come_back, take_place, takes_back_any_row
from ..errors import CacheError
from ..target.target import Target, TargetPass
from .choose import greedy


@dataclass(frozen=True)
class QueuedPass:
    """One row that is under way: what was fed, the pass, and the choice after it, unread; `fetch`
    waits for it."""

    row_ids: mx.array
    result: TargetPass
    choices: mx.array
    fetch: Callable[[], list[list[int]]]


class Lookahead:
    """At most one queued pass over one cache."""

    def __init__(self, target: Target, cache: Sequence[Any]) -> None:
        self._target = target
        self._cache = cache
        self._queued: QueuedPass | None = None
        self._before: Place | None = None

    @property
    def can_undo(self) -> bool:
        """Whether a row can be taken back whatever it was: not from a layer that slides."""
        return takes_back_any_row(self._cache)

    @property
    def rows(self) -> int:
        """Rows by which the cache is ahead of what was emitted."""
        return 0 if self._queued is None else 1

    def step(self, anchor: mx.array, *, more: bool) -> QueuedPass:
        """The pass of the anchor (1,), queued before or now; with `more`, the next one behind it.

        Nothing is read: the caller fetches.
        """
        queued, self._queued, self._before = self._queued, None, None
        step = queued or self._run(anchor)
        if more:
            self.queue(step.choices)
        return step

    def queue(self, row_ids: mx.array) -> None:
        """Feed the unread choice (1,) of the pass before."""
        if self._queued is not None:
            raise CacheError("a pass is queued already: take its step, or drop it, before another")
        self._before = take_place(self._cache)
        self._queued = self._run(row_ids)

    def _run(self, row_ids: mx.array) -> QueuedPass:
        """Feed one row and choose greedily after it: queued, not waited for."""
        result = self._target.forward_with_taps(row_ids[None], self._cache)
        choices = greedy(self._target.logits_from_hidden(result.hidden).squeeze(0))
        return QueuedPass(row_ids, result, choices, self._target.start_reading([choices]))

    def drop(self) -> None:
        """Leave the cache as if nothing had been queued."""
        if self._before is not None:
            come_back(self._cache, self._before)
        self._queued = self._before = None
