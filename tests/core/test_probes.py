"""Stored probes: what is stored comes back, and only where all it was measured with holds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.options import GenerateOptions, LoadOptions, parse_dtype
from dflash_suite.core.probe_store import (
    SCHEMA,
    ProbeKey,
    StoredProbe,
    identify,
    load_probe,
    probe_directory,
    probe_key,
    save_probe,
)
from dflash_suite.core.report import SILENT, Report
from dflash_suite.drafters.bench.arm_specs import ArmSpec
from dflash_suite.drafters.bench.arms import load_arms
from dflash_suite.drafters.pair import load_pair
from dflash_suite.drafters.stored_block import drafter_key
from tests.kit.opening import open_target
from tests.kit.tiny import make_target, save_checkpoint
from tests.kit.tiny_drafter import save_drafter
from tests.kit.tiny_mtp import head_tensors, prefixed, save_target

PROBE = StoredProbe("2026-11-29", 8, True, False, 5, {"figure": 1.5})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache directory for each test: nothing is found that it did not store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield


def key_of(directory: Path) -> ProbeKey:
    """The key of a tiny checkpoint in `directory`."""
    found = probe_key(open_target(str(save_checkpoint(directory))).target)
    assert found is not None
    return found


def looked_up(key: ProbeKey) -> tuple[StoredProbe | None, list[str]]:
    notes: list[str] = []
    return load_probe(key, notes.append), notes


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    key = key_of(tmp_path / "target")
    assert looked_up(key) == (None, [])
    file = save_probe(key, PROBE)
    assert looked_up(key) == (PROBE, [])
    assert list(probe_directory().iterdir()) == [file]
    document = json.loads(file.read_text())
    assert document["schema"] == SCHEMA and document["key"] == asdict(key)
    newer = replace(PROBE, block=3)
    assert save_probe(key, newer) == file and looked_up(key) == (newer, [])
    assert list(probe_directory().iterdir()) == [file]


@pytest.mark.parametrize("field", ["model", "dtype", "kernels", "device", "drafter"])
def test_another_place_has_its_own_probe(tmp_path: Path, field: str) -> None:
    """Neither found for another model, dtype, device or drafter, nor overwritten by its probe."""
    key = key_of(tmp_path / "target")
    save_probe(key, PROBE)
    other = replace(key, **{field: "another"})
    assert looked_up(other) == (None, [])
    save_probe(other, replace(PROBE, block=2))
    assert looked_up(key) == (PROBE, [])


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("mlx", "measured with mlx 0.32.0"),
        ("mlx_lm", "measured with mlx-lm 0.32.0"),
        ("suite", "measured with suite 0.32.0"),
        ("weights", "the model's files have changed"),
        ("drafter_weights", "the drafter's files have changed"),
    ],
)
def test_an_outdated_probe_is_ignored_with_a_note(tmp_path: Path, field: str, said: str) -> None:
    key = key_of(tmp_path / "target")
    file = save_probe(replace(key, **{field: "0.32.0"}), PROBE)
    found, notes = looked_up(key)
    assert found is None and len(notes) == 1
    assert said in notes[0] and "run dflash doctor --probe again" in notes[0]
    assert save_probe(key, PROBE) == file  # the new one takes its place
    assert looked_up(key) == (PROBE, [])


GOOD: dict[str, Any] = {"schema": SCHEMA, **asdict(PROBE)}
BAD = {
    "empty": "",
    "half": '{"schema": "dflash.pro',
    "a list": "[]",
    "deep": "[" * 100_000,
    "foreign": json.dumps({"schema": "other/1"}),
    "no key": json.dumps(GOOD),
    "keys of others": json.dumps({**GOOD, "key": {"model": "m"}}),
}
CHANGED: dict[str, Any] = {
    "block": [0, 1, 65, 2.5, "5", True, []],
    "exact_width": [0, 1, -1, 65, 8.0, "8", False],
    "exact_pads": [None, 1, "true"],
    "exact_fixes_keys": [None, 0],
    "date": [None, 20261129, "yesterday", ""],
    "details": [None, [], "x"],
    "schema": ["dflash.probe/2", None],
}


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_a_broken_or_foreign_file_is_ignored_with_a_note(tmp_path: Path, text: str) -> None:
    key = key_of(tmp_path / "target")
    save_probe(key, PROBE).write_text(text)
    found, notes = looked_up(key)
    assert found is None and len(notes) == 1 and str(key.file) in notes[0]


@pytest.mark.parametrize("name", list(CHANGED))
def test_values_that_no_probe_states(tmp_path: Path, name: str) -> None:
    key = key_of(tmp_path / "target")
    for value in CHANGED[name]:
        file = save_probe(key, PROBE)
        file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
        found, notes = looked_up(key)
        assert found is None and len(notes) == 1, value


def test_bytes_and_directories_in_its_place(tmp_path: Path) -> None:
    key = key_of(tmp_path / "target")
    file = save_probe(key, PROBE)
    file.write_bytes(b"\xff\xfe\x00")
    assert looked_up(key)[0] is None
    file.unlink()
    file.mkdir()
    found, notes = looked_up(key)
    assert found is None and "it is not a file" in notes[0]
    file.rmdir()
    os.mkfifo(file)  # reading it would wait for ever
    found, notes = looked_up(key)
    assert found is None and "it is not a file" in notes[0]


def test_a_failed_write_leaves_the_older_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(tmp_path / "target")
    file = save_probe(key, PROBE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_probe(key, replace(PROBE, block=2))
    assert looked_up(key) == (PROBE, [])
    assert list(probe_directory().iterdir()) == [file]


def test_the_identity_of_weights(tmp_path: Path) -> None:
    """Every change of a file's name, size or time, or of config.json, is seen."""
    directory = save_checkpoint(tmp_path / "target")
    first = identify(directory)
    assert first and identify(directory) == first
    weights = directory / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    touched = identify(directory)
    weights.rename(directory / "model-1.safetensors")
    renamed = identify(directory)
    (directory / "config.json").write_text("{}")
    assert len({first, touched, renamed, identify(directory)}) == 4
    assert identify(tmp_path / "nowhere") == ""
    (directory / "model-1.safetensors").unlink()
    assert identify(directory) == ""


def test_a_target_of_no_directory_has_no_key() -> None:
    assert probe_key(make_target()) is None


@pytest.fixture
def pair_directory(tmp_path: Path) -> Path:
    """A tiny target with a DFlash2 drafter beside it, trained at 6 rows."""
    save_drafter(save_checkpoint(tmp_path / "pair") / "drafter")
    return tmp_path / "pair"


def store_block(directory: Path, dtype: str = "auto", **changes: Any) -> None:
    pair = load_pair(LoadOptions(model=str(directory), dtype=parse_dtype(dtype), drafter_bits=16))
    key = probe_key(pair.target)
    assert key is not None and pair.drafter is not None
    with_drafter = drafter_key(key, pair.drafter)
    assert with_drafter is not None
    save_probe(replace(with_drafter, **changes), replace(PROBE, block=3))


def block_of(directory: Path, report: Report = SILENT, **options: Any) -> int:
    pair = load_pair(LoadOptions(model=str(directory), drafter_bits=16, **options), report)
    assert pair.drafter is not None
    return pair.drafter.block(GenerateOptions()).effective


def test_a_later_start_takes_the_stored_block(pair_directory: Path) -> None:
    assert block_of(pair_directory) == 6
    store_block(pair_directory)
    assert block_of(pair_directory) == 3
    assert block_of(pair_directory, stored_probe=False) == 6
    assert block_of(pair_directory, dtype="bfloat16") == 6


def test_an_arm_of_a_benchmark_takes_it_too(pair_directory: Path) -> None:
    store_block(pair_directory)

    def block_size(stored_probe: bool) -> Any:
        specs = [ArmSpec("dflash", drafter_bits=16)]
        setup = load_arms(specs, LoadOptions(model=str(pair_directory), stored_probe=stored_probe))
        return setup.arms[0].settings["block_size"]

    assert (block_size(True), block_size(False)) == (3, 6)


def test_a_later_start_takes_the_stored_drafts_of_a_head(tmp_path: Path) -> None:
    """Of the very head: another one, other hidden rows or changed files have the default."""
    inside = save_target(tmp_path / "target", prefixed(head_tensors()))
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_bytes((inside / "config.json").read_bytes())
    mx.save_safetensors(str(folder / "model.safetensors"), head_tensors(hf=False))
    later = load_pair(LoadOptions(model=str(inside), speculation="mtp"))
    key = probe_key(later.target)
    assert key is not None and later.drafter is not None
    known = drafter_key(key, later.drafter)
    assert known is not None
    save_probe(known, replace(PROBE, block=2))

    def drafts(options: GenerateOptions, report: Report = SILENT, **loading: Any) -> int:
        pair = load_pair(LoadOptions(model=str(inside), speculation="mtp", **loading), report)
        assert pair.drafter is not None
        return pair.drafter.block(options).draft_tokens

    default, notes = GenerateOptions(), list[str]()
    assert drafts(default) == 1 and drafts(GenerateOptions(draft_tokens=4)) == 4
    assert drafts(default, stored_probe=False) == drafts(default, mtp_hidden="pre") == 3
    assert drafts(default, mtp=str(folder)) == 3
    arms = load_arms(
        [ArmSpec("mtp"), ArmSpec("mtp", draft_tokens=4)], LoadOptions(model=str(inside))
    ).arms
    assert [arm.settings["draft_tokens"] for arm in arms] == [1, 4]
    os.utime(inside / "model-mtp-shard.safetensors", ns=(0, 1))
    assert drafts(default, Report(note=notes.append)) == 3
    assert "the drafter's files have changed" in "".join(notes)


def test_an_outdated_block_is_no_default(pair_directory: Path) -> None:
    store_block(pair_directory, mlx="0.32.0")
    notes: list[str] = []
    assert block_of(pair_directory, Report(note=notes.append)) == 6
    assert any("measured with mlx 0.32.0" in note for note in notes)
    store_block(pair_directory)
    weights = pair_directory / "drafter" / "model.safetensors"
    os.utime(weights, ns=(0, 1))
    assert block_of(pair_directory, Report(note=notes.append)) == 6
    assert "the drafter's files have changed" in "".join(notes)
