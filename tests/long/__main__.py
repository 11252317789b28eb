"""Runs the long scripts one after another: `python -m tests.long [NAME ...]`, or `make long`.

Each is a process of its own, its output passed on as it comes. The exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.kit.places import ROOT

SCRIPTS = {
    "cases": "the tests, and the cases of thinned tests, that `make test` leaves out",
    "identity": "ids of the bundled pair with every drafter and block against mlx-lm's",
    "exact_identity": "ids of every mode under --exact",
    "sampling_loop": "sampled tokens against the exact distribution",
    "slab_torture": "slabs under kill -9, full disks and flipped bits",
    "request_lines": "2,000 generated lines of requests: each answered, memory flat",
    "mutations": "3,000 mutated checkpoints: doctor's verdict against generate's outcome",
    "schedules": "200 random schedules of interleaved requests against the same requests alone",
    "prefixes": "a long conversation's second turn against a cold run; 500 turns in a full bank",
    "bench_aa": "equal arms and a planted slowdown, on the real clock",
    "gate_measure": "what the gate costs and saves; measures and judges nothing",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scripts that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCRIPTS)}")
    names = parser.parse_args(arguments).names or list(SCRIPTS)
    unknown = [name for name in names if name not in SCRIPTS]
    if unknown:
        parser.error(f"no script {unknown[0]}; there are {', '.join(SCRIPTS)}")
    outcomes = []
    for name in names:
        print(f"== {name}: {SCRIPTS[name]}", flush=True)
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"tests.long.{name}"], cwd=ROOT, check=False)
        outcomes.append((name, done.returncode, time.monotonic() - started))
    for name, code, seconds in outcomes:
        print(f"{name:16} {'passed' if code == 0 else f'FAILED ({code})':12} {seconds:7.0f} s")
    return int(any(code for _, code, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main())
