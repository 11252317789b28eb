"""Files that are whole or not there, and links at temporary names that are never followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.atomic_files import open_own, write_whole


def test_whole_with_its_directory_and_nothing_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "new" / "file.json"
    write_whole(place, b"first")
    write_whole(place, b"second, longer")
    assert place.read_bytes() == b"second, longer"
    assert os.listdir(place.parent) == ["file.json"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o644


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
