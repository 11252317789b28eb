"""A drafter that does all its work and lets a script choose the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

SURVIVAL = (0.87, 0.75, 0.64, 0.52, 0.42, 0.34, 0.26)
"""Published accepts over trials by draft position: 4.80 tokens a round."""
GOLDEN = 0.6180339887498949
"""Its multiples, less their whole parts, fill the unit interval evenly from the first on, so that
a short run too keeps 4.80 tokens a round."""


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
        self._rounds = 0

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
        """How many drafts are right: the share of rounds that keep draft i is the published one."""
        self._rounds += 1
        point = (0.5 + self._rounds * GOLDEN) % 1.0
        return sum(point < share for share in SURVIVAL[:count])
