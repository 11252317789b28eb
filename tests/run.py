"""Runs pytest over all test files in a few processes at once, one for each core.

`python tests/run.py [pytest options]`; `make test` calls it. Files go into chunks of about the same
size in bytes, and a free core takes the next chunk. The exit code is the worst of all.
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
CHUNKS_A_WORKER = 3
NO_TESTS = 5
"""pytest's exit code where an option such as -k leaves a chunk without tests."""


def chunks(files: list[Path], count: int) -> list[list[Path]]:
    """`files` in `count` chunks, the largest file first into the smallest chunk."""
    parts: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: (-file.stat().st_size, file.name)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(file)
        sizes[smallest] += file.stat().st_size
    return [part for part in parts if part]


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
    files = sorted((ROOT / "tests").glob("test_*.py"))
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
