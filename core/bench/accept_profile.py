"""The accept profile: how far into a block drafts are kept, with the uncertainty of each rate.

Survival accepts[i]/trials[i] is the share of rounds that
kept draft i (and so all before it); tokens per round = 1 + the sum of survivals where every round
has the same number of drafts, and emitted/rounds always.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..stats import GenerationStats, RoundRates

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Rate:
    """kept of tried; low..high is the 95 % Wilson interval."""

    kept: int
    tried: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The rate itself."""
        return self.kept / self.tried


@dataclass(frozen=True)
class AcceptProfile(RoundRates):
    """Counts of many rounds; lists are by draft position, from 0."""

    rounds: int
    drafted: int
    accepted: int
    emitted: int
    discarded: int
    plain_steps: int
    target_passes: int
    accepts: tuple[int, ...]
    trials: tuple[int, ...]
    reached: tuple[int, ...]

    @property
    def survival(self) -> list[Rate | None]:
        """P(draft i is kept), by position; None where no round got that far."""
        return [_rate(*counts) for counts in zip(self.accepts, self.trials, strict=True)]

    @property
    def conditional(self) -> list[Rate | None]:
        """P(draft i is kept, given that all before it were), by position."""
        return [_rate(*counts) for counts in zip(self.accepts, self.reached, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """The `accept` object of `--json`, for an arm that speculates."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "discarded": self.discarded,
            "plain_steps": self.plain_steps,
            "target_passes": self.target_passes,
            "accept_rate": self.accept_rate,
            "accepts": list(self.accepts),
            "trials": list(self.trials),
            "reached": list(self.reached),
            "survival": [rate.value if rate else None for rate in self.survival],
            "interval95": [[rate.low, rate.high] if rate else None for rate in self.survival],
            "conditional": [rate.value if rate else None for rate in self.conditional],
        }


def pool_profile(stats: Iterable[GenerationStats]) -> AcceptProfile:
    """Counts of several answers together. Give each prompt once: a repeat of a deterministic
    answer adds no trial and would only make the intervals look narrower than they are."""
    known = list(stats)
    return AcceptProfile(
        rounds=sum(one.rounds for one in known),
        drafted=sum(one.drafted for one in known),
        accepted=sum(one.accepted for one in known),
        emitted=sum(one.emitted for one in known),
        discarded=sum(one.discarded for one in known),
        plain_steps=sum(one.plain_steps for one in known),
        target_passes=sum(one.target_passes for one in known),
        accepts=_add([one.accepts for one in known]),
        trials=_add([one.trials for one in known]),
        reached=_add([one.reached for one in known]),
    )


def wilson_interval(kept: int, tried: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a share (1927): sane near 0 and 1 and for few trials."""
    if not 0 <= kept <= tried or tried == 0:
        raise ValueError(f"{kept} of {tried} is not a share")
    share, weight = kept / tried, z * z / tried
    centre = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / tried + weight / (4 * tried))
    # The bounds at 0 and 1 are exact; rounding would put them a hair inside the share itself.
    return 0.0 if kept == 0 else centre - half, 1.0 if kept == tried else centre + half


def _rate(kept: int, tried: int) -> Rate | None:
    return Rate(kept, tried, *wilson_interval(kept, tried)) if tried else None


def _add(lists: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Element by element; shorter lists end in zeros."""
    totals = [0] * max((len(one) for one in lists), default=0)
    for one in lists:
        for index, count in enumerate(one):
            totals[index] += count
    return tuple(totals)
