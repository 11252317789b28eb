"""Slabs under kill -9, concurrent builders, full disks and flipped bits; not collected by pytest.

`python -m tests.long.slab_torture` runs all of it on the bundled drafter in some minutes; the tests
run small versions of the same functions. Whatever happens, the slab that is used must be the right
one, and no other file may stay behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dflash_suite.core.checkpoint.weight_source import read_source
from dflash_suite.core.options import QuantizeOptions
from dflash_suite.core.report import Report
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.slab.file_format import Slab
from dflash_suite.drafters.slab.load import plan_drafter, slab_store
from dflash_suite.drafters.slab.store import temporary
from dflash_suite.drafters.slab.use import SlabStore
from tests.kit.places import ROOT, SOURCE_ROOT

OPTIONS = QuantizeOptions()
BUILDER = """
import json, resource, signal, sys
from pathlib import Path
from tests.long.slab_torture import builder
builder(Path(sys.argv[1]), json.loads(sys.argv[2]))
"""


@dataclass
class Outcome:
    """What a run of many trials found; `wrong` and `strays` must be 0."""

    trials: int = 0
    wrong: int = 0
    strays: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        """One more of a kind of event: a trial that proves nothing must show."""
        self.seen[what] = self.seen.get(what, 0) + 1


def copy_bundled(directory: Path, name: str = "dflash2") -> Path:
    """A checkpoint of its own, beside which slabs can be written."""
    shutil.copytree(BUNDLED / name, directory)
    return directory


def store_of(checkpoint: Path, *, force: bool = False, notes: list[str] | None = None) -> SlabStore:
    """The usual store of a checkpoint's slab."""
    config = read_drafter_config(checkpoint)
    plan = plan_drafter(config, read_source(checkpoint), OPTIONS)
    report = Report() if notes is None else Report(note=notes.append)
    return slab_store(plan, report, force=force)


def read_checked(slab: Slab) -> str:
    """Use a slab as a loader does; returns what it says its source's content is."""
    slab.read_arrays()
    return slab.facts.content


def builder(checkpoint: Path, settings: dict[str, int]) -> None:
    """A process that builds: `repeat` times by force, or once; says what it did on stdout."""
    import resource

    limit = settings.get("file_bytes")
    store = store_of(checkpoint, force="repeat" in settings)
    print("ready", flush=True)
    sys.stdin.readline()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for _ in range(settings.get("repeat", 1)):
        try:
            print("built" if store.obtain(read_checked).built else "opened", flush=True)
        except Exception as exc:
            print(f"{type(exc).__name__}: {exc}", flush=True)


def start_builder(checkpoint: Path, **settings: int) -> subprocess.Popen[str]:
    """A builder that is ready and waits for a line on stdin."""
    path = os.pathsep.join([str(SOURCE_ROOT), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(checkpoint), json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def release(process: subprocess.Popen[str]) -> None:
    """Let a waiting builder go."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> list[str]:
    """The lines that a builder printed after `ready`."""
    output, _ = process.communicate(timeout=120)
    return output.split("\n")[:-1]


def reference_bytes(checkpoint: Path) -> bytes:
    """The right slab of a checkpoint."""
    found = store_of(checkpoint).obtain(read_checked)
    return found.path.read_bytes()


def strays(checkpoint: Path, slab: Path) -> list[str]:
    """Files that are neither the checkpoint's nor the slab."""
    known = {"config.json", "model.safetensors", slab.name}
    return sorted({path.name for path in checkpoint.iterdir()} - known)


def kill_builders(checkpoint: Path, count: int, seed: int = 0) -> Outcome:
    """kill -9 at random points of builds; after each the slab is none or right, and the next use
    leaves the right slab and nothing else."""
    outcome, rng = Outcome(), random.Random(seed)
    right = reference_bytes(checkpoint)
    slab = store_of(checkpoint).places[0]
    for trial in range(count):
        had_old = trial % 2 == 0
        if not had_old:
            slab.unlink(missing_ok=True)
        process = start_builder(checkpoint, repeat=1000)
        release(process)
        _wait_for_work(process, rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        finish(process)
        outcome.trials += 1
        outcome.count("killed while writing" if temporary(slab).exists() else "killed elsewhere")
        if slab.exists():
            outcome.wrong += slab.read_bytes() != right
            outcome.count("old or new slab there")
        elif had_old:
            outcome.wrong += 1
        found = store_of(checkpoint).obtain(read_checked)
        outcome.count("built again" if found.built else "opened")
        outcome.wrong += slab.read_bytes() != right
        outcome.strays += len(strays(checkpoint, slab))
    return outcome


def _wait_for_work(process: subprocess.Popen[str], delay_sec: float) -> None:
    """Wait, reading what the builder says meanwhile."""
    assert process.stdout is not None
    deadline = time.monotonic() + delay_sec
    while (left := deadline - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            os.read(process.stdout.fileno(), 4096)


def build_concurrently(checkpoint: Path, processes: int) -> Outcome:
    """Many builders at once, on no slab: one builds, the others open what it built."""
    outcome = Outcome()
    right = reference_bytes(checkpoint)
    slab = store_of(checkpoint).places[0]
    slab.unlink()
    started = [start_builder(checkpoint) for _ in range(processes)]
    for process in started:
        release(process)
    for process in started:
        lines = finish(process)
        outcome.trials += 1
        outcome.wrong += lines not in (["built"], ["opened"])
        outcome.count(lines[0] if lines else "died")
    outcome.wrong += outcome.seen.get("built") != 1
    outcome.wrong += slab.read_bytes() != right
    outcome.strays += len(strays(checkpoint, slab))
    return outcome


def fill_disk(checkpoint: Path, count: int, seed: int = 0) -> Outcome:
    """Builds that may write only so many bytes: an error that says so, and the old slab or none."""
    outcome, rng = Outcome(), random.Random(seed)
    right = reference_bytes(checkpoint)
    slab = store_of(checkpoint).places[0]
    for trial in range(count):
        had_old = trial % 2 == 0
        if not had_old:
            slab.unlink(missing_ok=True)
        elif not slab.exists():
            slab.write_bytes(right)
        process = start_builder(checkpoint, repeat=1, file_bytes=rng.randrange(len(right)))
        release(process)
        lines = finish(process)
        outcome.trials += 1
        outcome.wrong += not (len(lines) == 1 and "could not be written" in lines[0])
        outcome.count(lines[0].split(":")[0] if lines else "died")
        outcome.wrong += slab.exists() != had_old or (had_old and slab.read_bytes() != right)
        outcome.strays += len(strays(checkpoint, slab))
    return outcome


def flip_bits(checkpoint: Path, count: int, seed: int = 0) -> Outcome:
    """One flipped bit at a time, some in the header: never used, made again with a note."""
    outcome, rng = Outcome(), random.Random(seed)
    right = reference_bytes(checkpoint)
    slab = store_of(checkpoint).places[0]
    header_bytes = 8 + int.from_bytes(right[:8], "little")
    for trial in range(count):
        in_header = trial % 4 == 0
        position = rng.randrange(header_bytes if in_header else len(right))
        damaged = bytearray(right)
        damaged[position] ^= 1 << rng.randrange(8)
        slab.write_bytes(damaged)
        notes: list[str] = []
        found = store_of(checkpoint, notes=notes).obtain(read_checked)
        outcome.trials += 1
        outcome.count("flip in the header" if position < header_bytes else "flip in the data")
        outcome.wrong += not found.built or len(notes) != 1 or slab.read_bytes() != right
        outcome.strays += len(strays(checkpoint, slab))
    return outcome


def main() -> None:
    """All of it, with one line a part; exit code 1 where anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--builders", type=int, default=8)
    parser.add_argument("--full-disks", type=int, default=40)
    parser.add_argument("--flips", type=int, default=1000)
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = copy_bundled(Path(folder) / "dflash2")
        parts: list[tuple[str, Callable[[], Outcome]]] = [
            ("kill -9", lambda: kill_builders(checkpoint, args.kills)),
            ("concurrent builders", lambda: build_concurrently(checkpoint, args.builders)),
            ("full disk", lambda: fill_disk(checkpoint, args.full_disks)),
            ("bit flips", lambda: flip_bits(checkpoint, args.flips)),
        ]
        for name, run in parts:
            started = time.monotonic()
            outcome = run()
            print(f"{name}: {outcome} in {time.monotonic() - started:.0f} s", flush=True)
            failed |= bool(outcome.wrong or outcome.strays)
    sys.exit(failed)


if __name__ == "__main__":
    main()
