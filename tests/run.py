"""Runs pytest over all test files in a few processes at once, one for each core.

`python tests/run.py [pytest options]`; `make test` calls it. Files go into chunks that take about
the same time, and a free core takes the next chunk. The exit code is the worst of all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_WORKERS = 4
CHUNKS_A_WORKER = 2
"""Each pays for its start, its imports and the bundled pair."""
SLOW_SEC = {
    "test_agreement": 10,
    "test_bench_run": 9,
    "test_bundled_identity": 18,
    "test_cli_bench": 15,
    "test_cli_exact": 14,
    "test_cli_generate": 41,
    "test_cli_quantize": 10,
    "test_cli_requests": 16,
    "test_cuda_draft": 30,
    "test_cuda_joined": 30,
    "test_cuda_mailbox": 10,
    "test_cuda_on_cpu": 30,
    "test_decode": 9,
    "test_doctor_agrees": 9,
    "test_doctor_hub": 12,
    "test_doctor_probe": 31,
    "test_drafter_ends": 9,
    "test_engine": 23,
    "test_exact": 50,
    "test_exact_identity": 8,
    "test_families": 16,
    "test_hub": 9,
    "test_identity": 15,
    "test_mtp": 12,
    "test_promise": 15,
    "test_route_switching": 15,
    "test_sampling": 12,
    "test_upstream": 33,
}
"""Measured on two cores, where it is far from what the size says; a guide to balance, no limit."""
BYTES_A_SEC = 4000
NO_TESTS = 5
"""pytest's exit code where an option such as -k leaves a chunk without tests."""


def chunks(files: list[Path], count: int) -> list[list[Path]]:
    """`files` in `count` chunks, the slowest file first into the shortest chunk."""
    parts: list[list[Path]] = [[] for _ in range(count)]
    lengths = [0.0] * count
    for file in sorted(files, key=lambda file: (-seconds(file), file.name)):
        shortest = lengths.index(min(lengths))
        parts[shortest].append(file)
        lengths[shortest] += seconds(file)
    return [part for part in parts if part]


def seconds(file: Path) -> float:
    """How long a file takes, about."""
    return SLOW_SEC.get(file.stem, file.stat().st_size / BYTES_A_SEC)


def run(files: list[Path], options: list[str], scratch: Path) -> tuple[int, str]:
    """One pytest process: (exit code, its output)."""
    names = [str(file.relative_to(ROOT)) for file in files]
    places = [f"--basetemp={scratch}", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *places, *options, *names],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def main(options: list[str]) -> int:
    """Run everything; print each chunk's output when it is done."""
    workers = max(1, min(os.cpu_count() or 1, MAX_WORKERS))
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    parts = chunks(files, workers * CHUNKS_A_WORKER)
    assert sorted(file for part in parts for file in part) == files
    worst = 0
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(workers) as pool:
        jobs = [
            pool.submit(run, part, options, Path(place) / str(index))
            for index, part in enumerate(parts)
        ]
        for job in jobs:
            code, output = job.result()
            print(output, end="", flush=True)
            worst = max(worst, 0 if code == NO_TESTS else code)
    print("all tests passed" if worst == 0 else "some tests FAILED")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["-q"]))
