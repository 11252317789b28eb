"""2,000 generated lines of `--requests`: each is answered, and memory stays flat."""

from __future__ import annotations

import resource
import sys

import mlx.core as mx
from hypothesis import HealthCheck, given, settings

from dflash_suite.cli.actions.requests import Defaults, answer
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.drafters.engine import from_pair
from dflash_suite.drafters.pair import load_pair
from tests.kit.request_lines import any_line

LINES = 2000
WARM_LINES = 400
"""Until then caches and compiled functions still come to be."""
MAY_GROW_BYTES = 64 * 2**20


def peak_bytes() -> int:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> int:
    """Print what happened; 1 where a line was not answered, or memory grew."""
    engine = from_pair(load_pair(LoadOptions(dtype="float32", drafter_bits=16, exact=False)))
    defaults = Defaults(GenerateOptions(max_tokens=2, gate=False), "auto")
    held: list[tuple[int, int]] = []
    answered = 0

    @settings(
        max_examples=LINES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(line=any_line())
    def run(line: bytes) -> None:
        nonlocal answered
        answered += "error" not in answer(engine, len(held) + 1, line, defaults)
        held.append((mx.get_active_memory(), peak_bytes()))

    run()
    grown = [after - before for before, after in zip(held[WARM_LINES], held[-1], strict=True)]
    print(
        f"{len(held)} lines, {answered} of them decoded; after the first {WARM_LINES} MLX holds "
        f"{grown[0] / 2**20:.1f} MB more, and the process's peak grew by {grown[1] / 2**20:.1f} MB"
    )
    right = len(held) >= LINES and LINES / 10 < answered < len(held) * 0.9
    return int(not right or max(grown) > MAY_GROW_BYTES)


if __name__ == "__main__":
    sys.exit(main())
