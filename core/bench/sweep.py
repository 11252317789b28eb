"""Which of many arms is the best on this device, and which cannot be told from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .compare import compare_arms, complete_groups
from .report import BenchReport


@dataclass(frozen=True)
class Best:
    """The arm with the highest end-to-end speed, and the arms that show no difference to it."""

    arm: int
    as_good: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """The `best` object of `--json`."""
        return {"arm": self.arm, "as_good": list(self.as_good)}


def find_best(report: BenchReport) -> Best | None:
    """By the median ratio to the arm that all were compared with, which itself counts as 1."""
    if not report.comparisons:
        return None
    against = report.comparisons[0].first
    ratios = {against: 1.0}
    for comparison in report.comparisons:
        if comparison.end_to_end is not None:
            ratios[comparison.second] = comparison.end_to_end.spread.median
    best = max(ratios, key=lambda arm: ratios[arm])
    samples = complete_groups(
        [sample for arm in report.arms for sample in arm.samples], len(report.arms)
    )
    as_good = []
    for arm in range(len(report.arms)):
        other = compare_arms(best, arm, samples, report.measured, report.headline, False)
        undecided = ("no difference", "too few pairs")
        if arm != best and other.verdict in undecided:
            as_good.append(arm)
    return Best(best, tuple(as_good))
