"""How far into a block a drafter's drafts are kept, over a few short answers on this device.

The answers are greedy and without the gate; the ids of each are held against plain decoding's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.decode.drafter import Drafter
from ...core.decode.emit import Detokenizer
from ...core.decode.loop import Generation
from ...core.options import MAX_DRAFT_TOKENS, GenerateOptions
from ...core.target.target import Target

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class AcceptCurve:
    """Rounds of one drafter at one block. accepts, trials: by draft position, as in the loop's
    statistics; differing: answers whose ids are not those of plain decoding, of `answers`."""

    block: int
    rounds: int
    emitted: int
    accepts: tuple[int, ...]
    trials: tuple[int, ...]
    answers: int
    differing: int

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of rounds that kept the draft at each position and all before it."""
        pairs = zip(self.accepts, self.trials, strict=True)
        return tuple(kept / tried if tried else 0.0 for kept, tried in pairs)

    def expected_tokens(self, block: int) -> float:
        """Tokens a round of `block` rows (at most this profile's): the target's own token, and
        each draft by its survival."""
        return 1 + sum(self.survival[: block - 1])

    def to_dict(self) -> dict[str, Any]:
        """An entry of `accept` in the doctor's JSON document."""
        return {
            "block": self.block,
            "rounds": self.rounds,
            "emitted": self.emitted,
            "accepts": list(self.accepts),
            "trials": list(self.trials),
            "answers": self.answers,
            "differing": self.differing,
        }


@dataclass(frozen=True)
class Answers:
    """Decodes the same prompts again and again; `plain` holds the plain ids, by prompt."""

    target: Target
    prompts: Prompts
    detokenizer: Callable[[], Detokenizer]
    max_tokens: int
    plain: tuple[tuple[int, ...], ...]

    def profile(self, drafter: Drafter, block: int) -> AcceptCurve:
        """The drafter's acceptance at `block` rows."""
        options = GenerateOptions(
            max_tokens=self.max_tokens,
            block_size=block,
            draft_tokens=min(block - 1, MAX_DRAFT_TOKENS),
            gate=False,
        )
        totals: list[list[int]] = [[0] * (block - 1), [0] * (block - 1)]
        rounds = emitted = differing = 0
        for ids, plain in zip(self.prompts, self.plain, strict=True):
            found = self._run(ids, drafter, options)
            for total, counts in zip(
                totals, (found.stats.accepts, found.stats.trials), strict=True
            ):
                for position, count in enumerate(counts):
                    total[position] += count
            rounds += found.stats.rounds
            emitted += found.stats.emitted
            differing += tuple(found.emitter.token_ids) != plain
        accepts, trials = map(tuple, totals)
        return AcceptCurve(block, rounds, emitted, accepts, trials, len(self.prompts), differing)

    def _run(
        self, ids: Sequence[int], drafter: Drafter | None, options: GenerateOptions
    ) -> Generation:
        generation = Generation(
            self.target, ids, self.detokenizer(), drafter=drafter, options=options
        )
        for _ in generation:
            pass
        return generation


def plain_answers(
    target: Target, prompts: Prompts, detokenizer: Callable[[], Detokenizer], max_tokens: int
) -> Answers:
    """Decode every prompt plainly: what the drafters' answers are held against."""
    empty = Answers(target, prompts, detokenizer, max_tokens, ())
    options = GenerateOptions(max_tokens=max_tokens)
    plain = (tuple(empty._run(ids, None, options).emitter.token_ids) for ids in prompts)
    return Answers(target, prompts, detokenizer, max_tokens, tuple(plain))
