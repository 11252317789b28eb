"""How often does `dflash bench` tell equal arms apart, and does it find a planted slowdown?

`python -m tests.long.bench_aa [RUNS] [--cpu-time]`: minutes on the bundled pair and the real clock,
so no part of the tests. Exits 1 unless at least 19 of 20 equal runs say "no difference" and every
planted slowdown of 10 % is found. --cpu-time: the process's own time in place of the wall's, for
a machine that others keep busy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dflash_suite.core.bench.options import BenchOptions
from dflash_suite.core.bench.report import BenchReport, make_report
from dflash_suite.core.bench.runner import Bench
from dflash_suite.core.bench.types import Arm
from dflash_suite.core.options import LoadOptions
from dflash_suite.drafters.bench.arm_specs import ArmSpec
from dflash_suite.drafters.bench.arms import BenchSetup, load_arms
from dflash_suite.drafters.bench.prompts import collect_prompts

SLOWDOWN = 0.10
Clock = Callable[[], float]
CLOCK: Clock = time.perf_counter
SETS = ("hand", "hand-chat")
OPTIONS = BenchOptions(
    max_tokens=16, repeats=2, max_prompts=8, profile_prompts=0, width_repeats=0, warmup_tokens=8
)


class Slowed:
    """A drafter that wastes a share of the time that a start and a round of the real one take."""

    def __init__(self, drafter: Any, clock: Clock, start_sec: float, round_sec: float) -> None:
        self._drafter, self._clock = drafter, clock
        self._start_sec, self._round_sec = start_sec, round_sec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def reset(self, position: int) -> None:
        """Begin an answer, late."""
        self._waste(self._start_sec)
        self._drafter.reset(position)

    def draft(self, anchor: Any, count: int) -> Any:
        """Draft, late."""
        self._waste(self._round_sec)
        return self._drafter.draft(anchor, count)

    def _waste(self, seconds: float) -> None:
        until = self._clock() + seconds
        while self._clock() < until:
            pass


def run(setup: BenchSetup, arms: list[Arm], clock: Clock) -> BenchReport:
    """One benchmark of short answers."""
    tokenizer, target = setup.target.tokenizer, setup.target.target
    prompts = collect_prompts(
        tokenizer,
        target.config.vocab_size,
        sets=SETS,
        bundled_target=True,
        most=OPTIONS.max_prompts,
    )
    bench = Bench(target, lambda: tokenizer.detokenizer, arms, prompts, OPTIONS, clock)
    for _ in bench.run():
        pass
    return make_report(bench)


def verdict(report: BenchReport) -> str:
    """The verdict, with its figures on stdout."""
    ratio = report.comparisons[0].end_to_end
    assert ratio is not None and ratio.interval is not None
    low, high = ratio.interval
    print(
        f"  {ratio.spread.median:.3f} ({low:.3f}-{high:.3f}), {ratio.spread.count} pairs, "
        f"{len(report.degenerate)} loops: {ratio.verdict}",
        flush=True,
    )
    return ratio.verdict


def main(runs: int, clock: Clock) -> int:
    """Equal arms `runs` times, then the slowed arm a quarter as often."""
    setup = load_arms([ArmSpec("dflash"), ArmSpec("dflash")], LoadOptions(stored_probe=False))
    first, second = setup.arms
    print("A against A", flush=True)
    reports = [run(setup, setup.arms, clock)]
    equal = [verdict(reports[0])]
    speed = reports[0].arms[0]
    assert speed.pass_sec is not None and speed.ttft_sec is not None
    slowed: Any = Slowed(
        second.drafter, clock, SLOWDOWN * speed.ttft_sec.median, SLOWDOWN * speed.pass_sec
    )
    equal += [verdict(run(setup, setup.arms, clock)) for _ in range(runs - 1)]
    print(f"A against A slowed by {SLOWDOWN:.0%}", flush=True)
    arms = [first, replace(second, drafter=slowed)]
    slow = [verdict(run(setup, arms, clock)) for _ in range(max(1, runs // 4))]
    same, found = equal.count("no difference"), slow.count("slower")
    print(f"no difference in {same} of {len(equal)}; slowdown found in {found} of {len(slow)}")
    return 0 if 20 * same >= 19 * runs and found == len(slow) else 1


if __name__ == "__main__":
    counts = [int(given) for given in sys.argv[1:] if given.isdecimal()]
    cpu_time = "--cpu-time" in sys.argv
    sys.exit(main(counts[0] if counts else 20, time.process_time if cpu_time else CLOCK))
