"""3,000 mutated checkpoints: doctor's verdict against generate's outcome for each of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.kit.mutations import Mutations, judge

FIRST, COUNT = 1000, 3000
"""Other numbers than those of `make test`."""


def main() -> int:
    """Print each mutation over which they differ; 1 where there is one, or a verdict is rare."""
    counted = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="dflash-mutations-") as folder:
        mutations = Mutations(Path(folder))
        for number in range(FIRST, FIRST + COUNT):
            mutation = mutations.make(number)
            try:
                verdicts = judge(mutation)
                trouble = "" if verdicts.agree else str(verdicts)
                counted["answered" if verdicts.taken is not None else "refused"] += 1
            except Exception as exc:  # a traceback is what is looked for
                trouble = f"{type(exc).__name__}: {exc}"
            if trouble:
                counted["wrong"] += 1
                print(f"{number}, {mutation}: {trouble}", flush=True)
            shutil.rmtree(mutation.directory)
    print(", ".join(f"{count} {what}" for what, count in sorted(counted.items())))
    return int(counted["wrong"] > 0 or min(counted["answered"], counted["refused"]) < COUNT / 5)


if __name__ == "__main__":
    sys.exit(main())
