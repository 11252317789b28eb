"""Tokens per round by how long the context was: drafters were trained on short ones, and fade."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..stats import GenerationStats

EDGES = (0, 256, 1024, 4096, 16384, 65536)
"""Context lengths, in tokens, at which a new row begins."""


@dataclass(frozen=True)
class ContextRow:
    """Rounds that began with `start` .. `stop` - 1 tokens of context (stop None: any more)."""

    start: int
    stop: int | None
    rounds: int
    emitted: int

    @property
    def tokens_per_round(self) -> float:
        """Tokens emitted per round."""
        return self.emitted / self.rounds

    def to_dict(self) -> dict[str, Any]:
        """An element of `accept_by_context` of `--json`."""
        return {
            "start": self.start,
            "stop": self.stop,
            "rounds": self.rounds,
            "emitted": self.emitted,
            "tokens_per_round": self.tokens_per_round,
        }


def split_by_context(stats: Iterable[GenerationStats]) -> list[ContextRow]:
    """Rows that have a round. Answers in which a gate mixed plain steps in are left out: where
    their rounds stood is not recorded. (Without a gate a plain step can only be the last.)"""
    rounds, emitted = [0] * len(EDGES), [0] * len(EDGES)
    for one in stats:
        if one.plain_steps > 1:
            continue
        context = one.prompt_tokens + 1  # the first token comes from the prefill
        for accept_length in one.accept_lengths:
            row = sum(edge <= context for edge in EDGES) - 1
            rounds[row] += 1
            emitted[row] += accept_length
            context += accept_length
    stops = [*EDGES[1:], None]
    return [
        ContextRow(EDGES[row], stops[row], rounds[row], emitted[row])
        for row in range(len(EDGES))
        if rounds[row]
    ]
