"""The doctor on slabs, and --verify: what it reads, and what only reading shows."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from dflash_suite.core.options import LoadOptions
from dflash_suite.doctor.results import CheckResult
from dflash_suite.drafters.pair import load_pair
from tests.kit.doctor_pairs import look, save_pair, troubles

SLAB = "dflash-int4-g64.slab"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A pair whose slab generate has made."""
    directory = save_pair(tmp_path / "pair")
    load_pair(LoadOptions(model=str(directory), speculation="dflash"))
    assert (directory / "drafter" / SLAB).is_file()
    return directory


def slab_finding(pair: Path, verify: bool = False) -> CheckResult:
    """What the doctor says of it, beside which nothing else is wrong."""
    diagnosis = look(pair, verify=verify)
    assert set(troubles(diagnosis)) <= {"drafter.slab"}
    return next(check for check in diagnosis.checks if check.name == "drafter.slab")


def test_none_yet_with_its_size_then_current(tmp_path: Path) -> None:
    """The size that is foretold is the size of the file that generate makes."""
    directory = save_pair(tmp_path / "pair")
    before = slab_finding(directory)
    assert before.status == "pass" and "none yet; generate makes one of" in before.found
    load_pair(LoadOptions(model=str(directory), speculation="dflash"))
    after = slab_finding(directory)
    assert after.status == "pass" and after.found.endswith(": current")
    size = (directory / "drafter" / SLAB).stat().st_size
    assert f"{size / 1e6:.1f} MB" in before.found and f"{size / 1e6:.1f} MB" in after.found


def test_a_slab_of_other_weights_is_stale(pair: Path) -> None:
    weights = pair / "drafter" / "model.safetensors"
    with weights.open("r+b") as stream:  # another header: a space behind the JSON text
        data = stream.read()
        length = int.from_bytes(data[:8], "little")
        stream.seek(0)
        stream.write((length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8)
        stream.write(data[8 + length :])
    finding = slab_finding(pair)
    assert finding.status == "warn" and "stale" in finding.found


def test_a_flipped_bit_shows_with_verify(pair: Path) -> None:
    """The header is sound, so only reading the data tells; generate reads it anyway."""
    slab = pair / "drafter" / SLAB
    with slab.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        byte = stream.read(1)[0]
        stream.seek(-100, os.SEEK_END)
        stream.write(bytes([byte ^ 1]))
    assert slab_finding(pair).status == "pass"
    finding = slab_finding(pair, verify=True)
    assert finding.status == "warn" and "damaged" in finding.found


def test_what_a_killed_builder_left(pair: Path) -> None:
    (pair / "drafter" / f"{SLAB}.tmp").write_bytes(b"half")
    finding = slab_finding(pair)
    assert finding.status == "warn" and "leftover" in finding.found


def as_hub_blob(file: Path, digest: str | None = None) -> None:
    """Keep a file as the hub's cache does: a link to a blob that is named by its sha256."""
    data = file.read_bytes()
    blob = file.parent.parent / (digest or hashlib.sha256(data).hexdigest())
    blob.write_bytes(data)
    file.unlink()
    file.symlink_to(blob)


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_verify_hashes_what_the_hubs_cache_knows(tmp_path: Path, part: str) -> None:
    """One planted fault: a blob with another content than its name."""
    directory = save_pair(tmp_path / "pair")
    for place in (directory, directory / "drafter"):
        is_bad = (place.name == "drafter") == (part == "drafter")
        as_hub_blob(place / "model.safetensors", "0" * 63 + str(is_bad + 0) if is_bad else None)
    assert not troubles(look(directory))
    diagnosis = look(directory, verify=True)
    assert set(troubles(diagnosis)) == {f"{part}.content"}
    other = {"target": "drafter", "drafter": "target"}[part]
    sound = next(check for check in diagnosis.checks if check.name == f"{other}.content")
    assert sound.status == "pass" and sound.found.startswith("1 of 1 files hashed")
