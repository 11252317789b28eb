"""Timing of calls that end with ids read from the device, interleaved with one another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import mlx.core as mx

Prepared = tuple[Callable[[], object], Callable[[], object]]
"""(the timed call, what puts everything back as it was, not timed)."""


def interleave(
    calls: Mapping[str, Prepared], repeats: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of each call, in turn, `repeats` times after `warmup` untimed turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warmup + repeats):
        for name, (call, restore) in calls.items():
            mx.synchronize()
            started = time.perf_counter()
            call()
            elapsed = time.perf_counter() - started
            restore()
            if turn >= warmup:
                times[name].append(elapsed)
    return times


def nothing() -> None:
    """Where there is nothing to put back."""
