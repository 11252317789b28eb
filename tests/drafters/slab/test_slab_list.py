"""Listing and pruning slabs, and directories made by --out."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.core.errors import OutputExists
from dflash_suite.core.options import QuantizeOptions
from dflash_suite.core.report import Report
from dflash_suite.drafters.quantize import quantize_drafter
from dflash_suite.drafters.slab.export import exported_config
from dflash_suite.drafters.slab.listing import SlabEntry, list_slabs, prune_slabs
from dflash_suite.drafters.slab.store import slab_directory, temporary
from tests.kit.slabs import plan_of, same_bits, save_half, use

LEFTOVER, BUSY = (f"{name}-0123456789ab-int4-g64.slab.tmp" for name in ("leftover", "busy"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return slab_directory()


def states(entries: list[SlabEntry]) -> dict[str, str]:
    return {entry.path.name: entry.state for entry in entries}


def cached(checkpoint: Path, own_cache: Path, name: str) -> Path:
    """The checkpoint's slab, in the cache directory under a name."""
    made = use(checkpoint)
    own_cache.mkdir(parents=True, exist_ok=True)
    return made.path.rename(own_cache / name)


def test_every_state_is_told_and_only_the_useless_are_pruned(
    tmp_path: Path, own_cache: Path
) -> None:
    assert list_slabs() == []
    for name in ("current", "touched", "stale", "orphaned", "damaged"):
        cached(save_half(tmp_path / name), own_cache, f"{name}.slab")
    os.utime(tmp_path / "touched" / "model.safetensors", ns=(1, 1))
    save_half(tmp_path / "stale", intermediate_size=64)
    shutil.rmtree(tmp_path / "orphaned")
    (own_cache / "damaged.slab").write_bytes((own_cache / "damaged.slab").read_bytes()[:5000])
    (own_cache / LEFTOVER).write_bytes(b"half")
    (own_cache / BUSY).write_bytes(b"half")
    (own_cache / "notes.txt").write_text("not ours")
    with (own_cache / BUSY).open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        entries = list_slabs()
        assert states(entries) == {
            BUSY: "busy",
            "current.slab": "current",
            "damaged.slab": "damaged",
            LEFTOVER: "leftover",
            "orphaned.slab": "orphaned",
            "stale.slab": "stale",
            "touched.slab": "touched",
        }
        removed = prune_slabs(entries)
    assert {entry.state for entry in removed} == {"damaged", "leftover", "orphaned", "stale"}
    left = sorted(path.name for path in own_cache.iterdir())
    assert left == [BUSY, "current.slab", "notes.txt", "touched.slab"]
    document = entries[1].to_dict()
    assert document["bits"] == 4 and document["source_path"] == str(tmp_path / "current")


@pytest.mark.parametrize("verify", [False, True])
def test_what_was_not_made_here_is_listed_and_stays(
    verify: bool, tmp_path: Path, own_cache: Path
) -> None:
    """In the cache directory and beside a checkpoint, whatever it is called."""
    checkpoint = save_half(tmp_path / "d")
    own_cache.mkdir(parents=True)
    foreign = [
        own_cache / "concrete.slab",
        own_cache / "empty.slab",
        own_cache / "concrete.slab.tmp",
        checkpoint / "dflash-int4-g64.slab",
        checkpoint / "dflash-int4-old.slab.tmp",
    ]
    for path in foreign:
        path.write_bytes(b"" if path.stem == "empty" else b"somebody's " * 500)
    mx.save_safetensors(str(own_cache / "weights"), {"a": mx.zeros((9,))})
    foreign.append((own_cache / "weights.safetensors").rename(own_cache / "weights.slab"))
    before = {path: path.read_bytes() for path in foreign}
    entries = list_slabs(checkpoint, verify=verify)
    assert {entry.path: entry.state for entry in entries} == dict.fromkeys(foreign, "foreign")
    assert all(entry.detail for entry in entries)
    assert prune_slabs(entries) == []
    assert {path: path.read_bytes() for path in foreign} == before


def test_verify_looks_at_data_and_sources(tmp_path: Path, own_cache: Path) -> None:
    path = cached(save_half(tmp_path / "touched"), own_cache, "touched.slab")
    os.utime(tmp_path / "touched" / "model.safetensors", ns=(1, 1))
    assert states(list_slabs(verify=True)) == {"touched.slab": "current"}
    weights = tmp_path / "touched" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert states(list_slabs()) == {"touched.slab": "touched"}
    assert states(list_slabs(verify=True)) == {"touched.slab": "stale"}
    slab = bytearray(path.read_bytes())
    slab[-1] ^= 1
    path.write_bytes(slab)
    assert states(list_slabs()) == {"touched.slab": "touched"}
    assert states(list_slabs(verify=True)) == {"touched.slab": "damaged"}


def test_the_slab_beside_a_checkpoint_is_listed_with_it(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d")
    use(checkpoint)
    use(checkpoint, bits=8)
    temporary(checkpoint / "dflash-int4-g32.slab").write_bytes(b"half")
    assert list_slabs() == []
    assert states(list_slabs(checkpoint)) == {
        "dflash-int4-g32.slab.tmp": "leftover",
        "dflash-int4-g64.slab": "current",
        "dflash-int8-g64.slab": "current",
    }


def export(checkpoint: Path, out: Path, bits: int = 4, *, force: bool = False) -> list[str]:
    """Run --out; returns the notes."""
    notes: list[str] = []
    options = QuantizeOptions(bits)
    quantize_drafter(str(checkpoint), options, Report(note=notes.append), out=out, force=force)
    return notes


def test_out_is_a_drafter_of_its_own(tmp_path: Path) -> None:
    checkpoint, out = save_half(tmp_path / "d"), tmp_path / "new" / "out"
    assert export(checkpoint, out) == []
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "config.json", "model.safetensors",
    ]  # fmt: skip
    raw = json.loads((out / "config.json").read_text())
    assert raw["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert raw["dflash_config"] == json.loads((checkpoint / "config.json").read_text())[
        "dflash_config"
    ]  # fmt: skip
    loaded = mx.load(str(out / "model.safetensors"))
    assert isinstance(loaded, dict)
    arrays = use(checkpoint).arrays
    assert loaded.keys() == arrays.keys()
    assert all(same_bits(loaded[name], arrays[name]) for name in arrays)
    assert str(tmp_path).encode() not in (out / "model.safetensors").read_bytes(), "a path"
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert export(checkpoint, out) == []
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_out_never_overwrites_what_is_not_its_own(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d")
    before = (checkpoint / "model.safetensors").read_bytes()
    for force in (False, True):
        with pytest.raises(OutputExists, match=r"model\.safetensors is there and is not a slab"):
            export(checkpoint, checkpoint, force=force)
    assert (checkpoint / "model.safetensors").read_bytes() == before
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(OutputExists, match="holds another drafter"):
        export(checkpoint, folder, force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputExists, match="is a file"):
        export(checkpoint, tmp_path / "file")


def test_out_replaces_another_packing_only_by_force(tmp_path: Path) -> None:
    checkpoint, out = save_half(tmp_path / "d"), tmp_path / "out"
    export(checkpoint, out)
    with pytest.raises(OutputExists, match="holds another drafter"):
        export(checkpoint, out, bits=8)
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == 4
    export(checkpoint, out, bits=8, force=True)
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == 8
    assert "fc.scales" in use(checkpoint, 8, places=[out / "model.safetensors"]).arrays
    other = save_half(tmp_path / "other", intermediate_size=64)
    with pytest.raises(OutputExists, match="holds another drafter"):
        export(other, out, bits=8)


def test_a_damaged_export_is_made_again(tmp_path: Path) -> None:
    checkpoint, out = save_half(tmp_path / "d"), tmp_path / "out"
    export(checkpoint, out)
    path = out / "model.safetensors"
    right = path.read_bytes()
    path.write_bytes(right[:6000] + b"\xff" + right[6001:])
    notes = export(checkpoint, out)
    assert len(notes) == 1 and "made again" in notes[0]
    assert path.read_bytes() == right
    assert (out / "config.json").read_text() == exported_config(plan_of(checkpoint))
