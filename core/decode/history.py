"""The tokens before a block, which penalties and other processors of logits look at."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


class History:
    """A request's tokens on the device: no more of them than its processors look at, and none
    sent twice.

    prompt_ids, emitted: the request's tokens; `emitted` is a list that grows while the object is
    used. reach: how many tokens back from a row anything looks; 0 for nothing, None for all.
    """

    def __init__(
        self, prompt_ids: Sequence[int], emitted: Sequence[int], reach: int | None
    ) -> None:
        self._prompt_ids = prompt_ids
        self._emitted = emitted
        self._reach = reach
        self._held = mx.array([], dtype=mx.int32)

    def before(self, position: int) -> mx.array:
        """(n,) int32: the tokens before `position`, which is never smaller than at the last call
        where everything is looked at. n is at most the reach."""
        if self._reach is not None:
            return self._sent(max(0, position - self._reach), position)
        held = self._held.shape[0]
        if held < position:
            self._held = mx.concatenate([self._held, self._sent(held, position)])
        return self._held

    def _sent(self, start: int, end: int) -> mx.array:
        """The tokens from `start` to before `end`, without a copy of those in front of them."""
        prompt = len(self._prompt_ids)
        ids = [
            *self._prompt_ids[start:end],
            *self._emitted[max(0, start - prompt) : max(0, end - prompt)],
        ]
        return mx.array(ids, dtype=mx.int32)
