"""200 random schedules of interleaved requests: ids equal those of the same requests alone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.drafters.test_sessions import KINDS, fresh, make_engine, modes_of, run_schedule

SCHEDULES = 200


def main() -> int:
    """Print how often answers were alive together; an AssertionError where ids differ."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as directory:
            engine = make_engine(Path(directory), kind)
            seeds = range(1000, 1000 + SCHEDULES // len(KINDS) + 1)
            together = [run_schedule(engine, fresh(engine), seed, modes_of(kind)) for seed in seeds]
        assert min(together) > 0
        print(
            f"{kind}: {len(together)} schedules, {sum(together)} turns with several answers alive"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
