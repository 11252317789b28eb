"""Files that are whole or not there, and links at temporary names that are never followed."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.atomic_files import open_own, write_whole
from dflash_suite.drafters.slab.store import sweep


def test_whole_with_its_directory_and_nothing_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "new" / "file.json"
    write_whole(place, b"first")
    write_whole(place, b"second, longer")
    assert place.read_bytes() == b"second, longer"
    assert os.listdir(place.parent) == ["file.json"]
    (tmp_path / "any").write_bytes(b"")
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_one_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space"):
        write_whole(place, b"new")
    monkeypatch.undo()
    assert place.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling"])
def test_a_link_is_taken_away_and_never_followed(kind: str, tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "slab.tmp"
    if kind != "dangling":
        victim.write_bytes(b"somebody's")
    if kind == "hard":
        place.hardlink_to(victim)
    else:
        place.symlink_to(victim)
    with open_own(place) as stream:
        stream.write(b"ours")
    assert place.read_bytes() == b"ours" and not place.is_symlink()
    assert victim.exists() == (kind != "dangling")
    if kind != "dangling":
        assert victim.read_bytes() == b"somebody's"


def test_our_own_file_is_opened_as_it_stands(tmp_path: Path) -> None:
    """What a builder that died left behind is taken over, not made anew."""
    place = tmp_path / "slab.tmp"
    place.write_bytes(b"half")
    number = place.stat().st_ino
    with open_own(place) as stream:
        assert stream.read() == b"half" and os.fstat(stream.fileno()).st_ino == number


def test_another_users_file_is_taken_away_unless_somebody_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is asked first: a live builder that loses its file would rename a stranger's."""
    place = tmp_path / "slab.tmp"
    place.write_bytes(b"another user's")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with place.open("rb") as builder:
        fcntl.flock(builder, fcntl.LOCK_EX)
        with pytest.raises(PermissionError, match="another user's process is writing it"):
            open_own(place)
        assert not sweep(tmp_path / "slab")
        assert place.read_bytes() == b"another user's"
    with open_own(place) as stream:
        assert stream.read() == b"", "a new file: the old one is nobody's work"


def test_a_directory_that_cannot_be_synced_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems do: the file has its name by then."""
    real = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]
