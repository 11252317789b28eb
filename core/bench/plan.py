"""The order of a benchmark: arms back to back on each prompt, in alternating order (A B B A).

A machine that warms up, or that another program slows down for a while, then costs every arm
the same; neighbours are compared with each other only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Work = Literal["warm-up", "reference", "measure", "profile", "widths"]


@dataclass(frozen=True)
class BenchStep:
    """One thing to do. `arm` is None for the plain reference and for the verify widths."""

    work: Work
    arm: int | None = None
    prompt: int = 0
    repeat: int = 0
    place: int = 0


def arm_order(arms: int, prompt: int, repeat: int) -> list[int]:
    """Forwards, then backwards, by turns: over the prompts, and over the repeats of each."""
    order = list(range(arms))
    return order[::-1] if (prompt + repeat) % 2 else order


def plan_measures(arms: int, prompts: int, repeats: int) -> Iterator[BenchStep]:
    """Every arm on every prompt, `repeats` times; a group of arms is never split."""
    for repeat in range(repeats):
        for prompt in range(prompts):
            for place, arm in enumerate(arm_order(arms, prompt, repeat)):
                yield BenchStep("measure", arm, prompt, repeat, place)


def make_plan(
    *, arms: int, prompts: int, repeats: int, profile_prompts: int, reference: bool, widths: bool
) -> list[BenchStep]:
    """Warm-up of every arm (discarded), the measures, then the passes that are not timed.

    reference: decode each prompt plainly once, before its first measure, because no arm does.
    """
    steps = [BenchStep("warm-up", arm) for arm in range(arms)]
    for step in plan_measures(arms, prompts, repeats):
        if reference and step.repeat == 0 and step.place == 0:
            steps.append(BenchStep("reference", None, step.prompt))
        steps.append(step)
    for prompt in range(min(profile_prompts, prompts)):
        steps.extend(BenchStep("profile", arm, prompt) for arm in arm_order(arms, prompt, 0))
    return [*steps, BenchStep("widths")] if widths else steps
