"""Where slabs go, when one is believed, and what is left behind when making one fails."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.checkpoint.safetensors_headers import read_header
from dflash_suite.core.errors import SlabWriteError, TensorError
from dflash_suite.core.options import QuantizeOptions
from dflash_suite.core.report import Report
from dflash_suite.core.settings import cache_directory
from dflash_suite.drafters.bundled.paths import ROOT
from dflash_suite.drafters.slab.file_format import Slab, open_slab
from dflash_suite.drafters.slab.store import slab_places, sweep, temporary
from dflash_suite.drafters.slab.use import SlabStore
from tests.kit.slabs import plan_of, same_bits, save_half, use

SLAB = "dflash-int4-g64.slab"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_half(tmp_path / "d")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dflash" / "slabs"


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, expected in (
        (str(tmp_path / "x"), tmp_path / "x" / "dflash"),
        ("relative", tmp_path / ".cache" / "dflash"),
        ("", tmp_path / ".cache" / "dflash"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_directory() == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "dflash"


def test_beside_the_checkpoint_else_in_the_cache(tmp_path: Path, own_cache: Path) -> None:
    options = QuantizeOptions(8, 32)
    beside, cached = slab_places(tmp_path / "d", options)
    assert beside == tmp_path / "d" / "dflash-int8-g32.slab"
    assert cached.parent == own_cache and cached.name.startswith("d-")
    snapshot = tmp_path / "models--z-lab--Qwen3-4B-DFlash" / "snapshots" / "0123abc"
    (place,) = slab_places(snapshot, options)
    assert place.parent == own_cache and place.name.startswith("Qwen3-4B-DFlash-")
    (place,) = slab_places(ROOT / "dflash2", options)
    assert place.parent == own_cache
    others = {slab_places(tmp_path / name / "d", options)[1] for name in "abc"}
    assert len(others) == 3


def test_a_second_use_quantizes_nothing_and_reads_only_the_source_s_header(
    checkpoint: Path,
) -> None:
    first = use(checkpoint)
    assert first.found.built and first.quantize_calls == 20 and first.notes == []
    before = first.path.stat()
    read = bytes_read()
    second = use(checkpoint)
    again = bytes_read()
    assert not second.found.built and second.quantize_calls == 0 and second.notes == []
    assert (second.path.stat().st_mtime_ns, second.path.stat().st_ino) == (
        before.st_mtime_ns,
        before.st_ino,
    )
    assert all(same_bits(array, first.arrays[name]) for name, array in second.arrays.items())
    if read is not None and again is not None:
        # The slab's header is read once more than its data, and nothing of the source but its
        # header, config.json, and this process's own reading of /proc.
        source_header = read_header(checkpoint / "model.safetensors").data_start
        slab_header = read_header(second.path).data_start
        config = (checkpoint / "config.json").stat().st_size
        allowed = before.st_size + slab_header + source_header + config + 1024
        source_data = (checkpoint / "model.safetensors").stat().st_size - source_header
        assert before.st_size < again - read <= allowed < before.st_size + source_data


def bytes_read() -> int | None:
    """Bytes that this process has read so far, where the system counts them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return int(lines[0].removeprefix("rchar: "))


def test_a_touched_or_renamed_source_keeps_its_slab_under_a_new_key(checkpoint: Path) -> None:
    first = use(checkpoint)
    weights = checkpoint / "model.safetensors"
    os.utime(weights, ns=(1, 2))
    touched = use(checkpoint)
    assert not touched.found.built and touched.quantize_calls == 0
    assert len(touched.notes) == 1 and "key renewed" in touched.notes[0]
    assert use(checkpoint).notes == []
    weights.rename(checkpoint / "weights-with-a-longer-name.safetensors")
    renamed = use(checkpoint)
    assert not renamed.found.built and "key renewed" in renamed.notes[0]
    last = use(checkpoint)
    assert last.notes == [] and last.quantize_calls == 0
    assert all(same_bits(array, first.arrays[name]) for name, array in last.arrays.items())
    assert names(checkpoint) == [
        "config.json", SLAB, "weights-with-a-longer-name.safetensors",
    ]  # fmt: skip


def test_a_key_that_cannot_be_renewed_is_no_reason_to_build(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(checkpoint)
    os.utime(checkpoint / "model.safetensors", ns=(1, 2))
    refuse_writing_in(monkeypatch, checkpoint)
    found = use(checkpoint)
    assert not found.found.built and found.quantize_calls == 0
    assert "cannot be renewed" in found.notes[0]


def test_other_weights_make_another_slab(checkpoint: Path) -> None:
    old = use(checkpoint)
    save_half(checkpoint, seed=1)
    new = use(checkpoint)
    assert new.found.built and new.path == old.path
    assert len(new.notes) == 1 and "was made from other weights" in new.notes[0]
    assert not same_bits(new.arrays["fc.weight"], old.arrays["fc.weight"])
    assert use(checkpoint).quantize_calls == 0


def test_other_weights_under_the_old_key_are_found_by_verify(checkpoint: Path) -> None:
    use(checkpoint)
    weights = checkpoint / "model.safetensors"
    state = weights.stat()
    save_half(checkpoint, seed=1)
    assert weights.stat().st_size == state.st_size
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert use(checkpoint).notes == []  # the quick key is believed
    found = use(checkpoint, verify=True)
    assert found.found.built and "was made from other weights" in found.notes[0]
    assert use(checkpoint, verify=True).notes == []


def test_a_foreign_slab_is_not_used(checkpoint: Path, tmp_path: Path) -> None:
    foreign = use(save_half(tmp_path / "other", seed=5))
    shutil.copy2(foreign.path, checkpoint / SLAB)
    found = use(checkpoint)
    assert found.found.built and "other weights" in found.notes[0]
    eight = use(checkpoint, bits=8)
    shutil.copy2(eight.path, checkpoint / SLAB)
    found = use(checkpoint)
    assert found.found.built and "another layout" in found.notes[0]


@pytest.mark.parametrize("damage", ["truncated", "data", "empty", "text"])
def test_a_damaged_slab_is_made_again_with_a_note(checkpoint: Path, damage: str) -> None:
    first = use(checkpoint)
    right = first.path.read_bytes()
    wrong = {
        "truncated": right[:-100],
        "data": right[:-1] + bytes([right[-1] ^ 1]),
        "empty": b"",
        "text": b"not a slab at all",
    }[damage]
    first.path.write_bytes(wrong)
    found = use(checkpoint)
    assert found.found.built and len(found.notes) == 1
    assert str(first.path) in found.notes[0] and "made again" in found.notes[0]
    assert found.path.read_bytes() == right


def test_force_makes_it_anew(checkpoint: Path) -> None:
    first = use(checkpoint)
    inode = first.path.stat().st_ino
    again = use(checkpoint, force=True)
    assert again.found.built and again.path.stat().st_ino != inode
    assert same_bits(again.arrays["fc.weight"], first.arrays["fc.weight"])


def refuse_writing_in(patch: pytest.MonkeyPatch, directory: Path, code: int = errno.EROFS) -> None:
    """As a read-only mount does; a test that runs as root cannot use file modes."""
    real: Callable[..., int] = os.open

    def refusing(path: Any, flags: int, *args: Any, **settings: Any) -> int:
        if flags & os.O_CREAT and Path(path).parent == directory:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *args, **settings)

    patch.setattr(os, "open", refusing)


def test_a_read_only_checkpoint_has_its_slab_in_the_cache(
    checkpoint: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writing_in(monkeypatch, checkpoint)
    found = use(checkpoint)
    assert found.found.built and found.path.parent == own_cache
    assert names(checkpoint) == ["config.json", "model.safetensors"]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache.parent.parent))
    assert use(checkpoint).path == found.path  # found there, although it could be beside now
    assert names(checkpoint) == ["config.json", "model.safetensors"]


def test_no_place_at_all_is_an_error_that_names_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    refuse_writing_in(monkeypatch, checkpoint, errno.EACCES)
    with pytest.raises(SlabWriteError, match=r"could not be written .* Make room there"):
        use(checkpoint)


def test_too_little_room_is_said_before_the_source_is_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1))
    with pytest.raises(SlabWriteError, match=r"bytes are needed, 1 are free"):
        use(checkpoint)
    assert names(checkpoint) == ["config.json", "model.safetensors"]


def test_a_source_that_changes_while_it_is_read_gives_no_slab(checkpoint: Path) -> None:
    plan = plan_of(checkpoint)
    save_half(checkpoint, seed=1)
    os.utime(checkpoint / "model.safetensors", ns=(5, 5))
    store = SlabStore(plan, [checkpoint / SLAB], Report())
    with pytest.raises(TensorError, match="was written to while it was read"):
        store.obtain(Slab.read_arrays)
    assert names(checkpoint) == ["config.json", "model.safetensors"]


def test_what_a_dead_builder_left_is_swept_away(checkpoint: Path) -> None:
    path = use(checkpoint).path
    temporary(path).write_bytes(b"half a slab")
    assert use(checkpoint).notes == []
    assert names(checkpoint) == ["config.json", SLAB, "model.safetensors"]
    path.unlink()
    temporary(path).write_bytes(b"half a slab, longer than the whole" * 10_000)
    assert use(checkpoint).found.built
    assert names(checkpoint) == ["config.json", SLAB, "model.safetensors"]
    assert use(checkpoint).notes == []


def test_what_a_live_builder_writes_is_left_alone_and_waited_for(checkpoint: Path) -> None:
    path = use(checkpoint).path
    path.unlink()
    place = temporary(path)
    with place.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert not sweep(path) and place.exists()
        results: list[Any] = []
        waiter = threading.Thread(target=lambda: results.append(use(checkpoint)))
        waiter.start()
        waiter.join(timeout=0.5)
        assert waiter.is_alive() and not results
    waiter.join(timeout=60)
    assert results and results[0].found.built
    assert results[0].notes == [f"waiting for another process that is writing {path}"]
    assert names(checkpoint) == ["config.json", SLAB, "model.safetensors"]


def test_the_slab_says_where_it_comes_from(checkpoint: Path, tmp_path: Path) -> None:
    with open_slab(use(checkpoint).path) as slab:
        assert slab.facts.source_path == str(checkpoint)
    with open_slab(use(checkpoint, places=[tmp_path / "x.slab"]).path) as slab:
        assert slab.facts.source_path == ""  # one that is given away names no directory
