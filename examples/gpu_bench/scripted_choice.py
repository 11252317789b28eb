"""A drafter that does all its work and lets a script choose the tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

SURVIVAL = (0.87, 0.75, 0.64, 0.52, 0.42, 0.34, 0.26)
"""Published accepts over trials by draft position: 4.80 tokens a round."""


class ScriptedChoice:
    """A real drafter whose drafts are replaced: `known` are the ids that plain decoding gives, and
    a round keeps exactly as many of them as the script says.

    The real path is drawn from as an operand, so that no lazy evaluation can leave it out.
    """

    def __init__(self, inner: Any, known: Sequence[int], prompt_tokens: int, vocab: int) -> None:
        self._inner = inner
        self._known = known
        self._prompt = prompt_tokens
        self._vocab = vocab
        self._random = random.Random(11)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """The inner draft, computed, then replaced."""
        real = self._inner.draft(anchor, count)
        keep = self._kept(count)
        start = self._inner.position - self._prompt + 1
        ids = [self._known[start + i] for i in range(count)]
        if keep < count:
            ids[keep] = (ids[keep] + 1) % self._vocab
        replaced: mx.array = mx.array(ids, dtype=mx.int32) + 0 * real.astype(mx.int32)
        return replaced

    def _kept(self, count: int) -> int:
        """How many drafts are right: position i is, given i - 1, at the published rate."""
        before = 1.0
        for index in range(count):
            if self._random.random() > SURVIVAL[index] / before:
                return index
            before = SURVIVAL[index]
        return count
