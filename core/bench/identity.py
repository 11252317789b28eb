"""Are the ids of an arm those of plain greedy decoding, and is the plain answer worth measuring?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..exact.promise import IDENTICAL, NOT_VERIFIED
from ..target.target import Target

LOOP_TOKENS, LOOP_SHARE, LOOP_RUNS = 4, 0.8, 16
"""A loop: of at least 16 runs of four tokens, four fifths stood before. Code repeats up to three
quarters of them without one."""


@dataclass(frozen=True)
class Difference:
    """Where an answer leaves the plain one: token index, and how sure the target was there.

    margin: log-probability of the plain token less that of the runner-up; near 0 is a tie that
    another kernel's last bits can turn. None where it was not computed.
    """

    prompt: int
    position: int
    plain_token: int | None
    token: int | None
    margin: float | None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "prompt": self.prompt,
            "position": self.position,
            "plain_token": self.plain_token,
            "token": self.token,
            "margin": self.margin,
        }


@dataclass(frozen=True)
class Identity:
    """prompts: how many were compared; unsteady: prompts whose repeats differ among themselves."""

    prompts: int
    differences: tuple[Difference, ...]
    unsteady: tuple[int, ...]
    sha256: dict[int, str]

    @property
    def holds(self) -> bool:
        """Every answer is the plain one, at every repeat."""
        return not self.differences and not self.unsteady

    @property
    def statement(self) -> str:
        """What may be said: ids that were compared in this run, or nothing."""
        return IDENTICAL if self.prompts and self.holds else NOT_VERIFIED

    def to_dict(self) -> dict[str, Any]:
        """The `identity` object of `--json`; `sha256` is of each prompt's answer ids."""
        return {
            "statement": self.statement,
            "equal": self.prompts - len(self.differences),
            "prompts": self.prompts,
            "differences": [difference.to_dict() for difference in self.differences],
            "unsteady": list(self.unsteady),
            "sha256": {str(prompt): digest for prompt, digest in self.sha256.items()},
        }


def is_degenerate(ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> bool:
    """Whether an answer, or its prompt, repeats itself: its drafts are right for a reason that says
    nothing about the drafter.

    That is so where at least LOOP_SHARE of its runs of LOOP_TOKENS tokens stood before, in the
    prompt or in the answer; wherever in the answer, and however it ends.
    """
    return repeated_share(ids, prompt_ids) >= LOOP_SHARE or repeated_share(prompt_ids) >= LOOP_SHARE


def repeated_share(ids: Sequence[int], before: Sequence[int] = ()) -> float:
    """Share of the runs of LOOP_TOKENS tokens that end in `ids` and stood earlier, in `before` or
    in `ids`; 0 for fewer runs than tell anything."""
    whole, seen = [*before, *ids], set[tuple[int, ...]]()
    runs = [tuple(whole[at : at + LOOP_TOKENS]) for at in range(len(whole) - LOOP_TOKENS + 1)]
    first = max(0, len(before) - LOOP_TOKENS + 1)
    repeated = 0
    for index, run in enumerate(runs):
        repeated += index >= first and run in seen
        seen.add(run)
    judged = len(runs) - first
    return repeated / judged if judged >= LOOP_RUNS else 0.0


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, or where one answer ends; None where equal."""
    if list(plain) == list(other):
        return None
    for index, (left, right) in enumerate(zip(plain, other, strict=False)):
        if left != right:
            return index
    return min(len(plain), len(other))


def top2_margin(target: Target, ids: Sequence[int], step: int) -> float:
    """Log-probability of the best next token less that of the second, after `ids`.

    Fed in chunks of `step` with the last token alone, as a prompt is.
    """
    cache = target.make_cache(len(ids))
    body = mx.array(list(ids[:-1]))
    for start in range(0, len(ids) - 1, step):
        mx.eval(target.forward_with_taps(body[None, start : start + step], cache).hidden)
    hidden = target.forward_with_taps(mx.array([[ids[-1]]]), cache).hidden
    logits = target.logits_from_hidden(hidden)[0, -1].astype(mx.float32)
    top = mx.sort(logits)[-2:]
    margin: Any = (top[1] - top[0]).item()
    return float(margin)
