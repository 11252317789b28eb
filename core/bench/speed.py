"""Speed, compared honestly: medians, the spread of every sample, and a paired bootstrap.

Arms are compared by the ratio of neighbours (same prompt, same repeat), never by two means that
were taken minutes apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Verdict = Literal["faster", "slower", "no difference", "too few pairs"]

CONFIDENCE = 0.99
RESAMPLES = 2000
SEED = 20261129
MIN_PAIRS = 8
"""Below 8 pairs even all of them on one side of 1 happens by chance more often than once in 100
(2 / 2**8), so that no interval at 99 % can be had."""


@dataclass(frozen=True)
class Spread:
    """Median and range of samples; nothing is trimmed."""

    median: float
    low: float
    high: float
    count: int

    def to_dict(self) -> dict[str, float]:
        """For `--json`."""
        return {"median": self.median, "min": self.low, "max": self.high, "count": self.count}


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios, their range, and the 99 % interval of the median (None where
    there are too few pairs)."""

    spread: Spread
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> Verdict:
        """Is the second arm's speed another than the first's?"""
        if self.interval is None:
            return "too few pairs"
        low, high = self.interval
        if low <= 1.0 <= high:
            return "no difference"
        return "faster" if low > 1.0 else "slower"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        interval = None if self.interval is None else list(self.interval)
        return {**self.spread.to_dict(), "interval99": interval, "verdict": self.verdict}


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Median, least and greatest of the values that are there; None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(median(known), min(known), max(known), len(known))


def compare_pairs(groups: Sequence[Sequence[float]], seed: int = SEED) -> Ratio | None:
    """groups: per prompt, the ratio of each repeat's pair; None where there is no pair at all."""
    used = [list(group) for group in groups if group]
    spread = spread_of([ratio for group in used for ratio in group])
    if spread is None:
        return None
    interval = bootstrap_interval(used, seed) if spread.count >= MIN_PAIRS else None
    return Ratio(spread, interval)


def bootstrap_interval(
    groups: Sequence[Sequence[float]],
    seed: int = SEED,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    """Percentile bootstrap of the median, drawn in two levels: prompts, then each one's repeats.

    The two levels keep a prompt's own effect together; they widen the interval where prompts do
    not differ, which errs towards "no difference". The seed is fixed: same samples, same answer.
    """
    draw = random.Random(seed)
    medians = []
    for _ in range(resamples):
        sample: list[float] = []
        for group in draw.choices(groups, k=len(groups)):
            sample.extend(draw.choices(group, k=len(group)))
        medians.append(median(sample))
    medians.sort()
    tail = round((1 - confidence) / 2 * resamples)
    return medians[tail], medians[resamples - 1 - tail]


@dataclass(frozen=True)
class BreakEven:
    """Why one arm beats another: what a pass costs against what it yields.

    time_ratio: seconds a pass, second arm over first; tokens_ratio: tokens a pass, likewise. The
    second arm decodes faster exactly where tokens_ratio is above time_ratio.
    """

    time_ratio: float
    tokens_ratio: float

    @property
    def speed_ratio(self) -> float:
        """What follows for decoding."""
        return self.tokens_ratio / self.time_ratio

    def to_dict(self) -> dict[str, float]:
        """For `--json`."""
        return {
            "time_ratio": self.time_ratio,
            "tokens_ratio": self.tokens_ratio,
            "speed_ratio": self.speed_ratio,
        }
