"""Where slabs are kept, and how one comes to stand there whole or not at all.

A slab stands beside its checkpoint; where that cannot be written, in a hub snapshot, and for the
bundled pair, in the user's cache directory. It is written into NAME.tmp and renamed. The builder
holds a lock on NAME.tmp itself: a process that dies leaves an unlocked file, which the next one
takes over, or sweeps away. So the lock needs no file of its own, which the `filelock` package would
leave behind. Prints nothing: notes and progress go to a Report.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...core.atomic_files import open_own, put_in_place
from ...core.options import QuantizeOptions
from ...core.report import Report
from ...core.settings import cache_directory
from ..bundled.paths import ROOT

SUFFIX = ".slab"
TEMPORARY = ".tmp"
MACOS_ENOTSUP = 45
"""What macOS gives for a lock on a network mount; the number means something else on Linux, where
no file operation gives it."""
UNWRITABLE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTDIR,
    errno.ENOTSUP, errno.ENOSYS, MACOS_ENOTSUP,
)  # fmt: skip
"""A place that cannot be used at all, as against one that is full."""


def slab_directory() -> Path:
    """The slabs in the user's cache directory."""
    return cache_directory() / "slabs"


def slab_places(directory: Path, options: QuantizeOptions) -> list[Path]:
    """Where the slab of a checkpoint may stand, best first."""
    directory = directory.resolve()
    mark = hashlib.sha256(str(directory).encode()).hexdigest()[:12]
    cached = slab_directory() / f"{_label(directory)}-{mark}-{options.label}{SUFFIX}"
    if ROOT in directory.parents or _is_hub_snapshot(directory):
        return [cached]
    return [directory / f"dflash-{options.label}{SUFFIX}", cached]


def _is_hub_snapshot(directory: Path) -> bool:
    """hub/models--OWNER--NAME/snapshots/REVISION, which belongs to the hub's own tool."""
    return directory.parent.name == "snapshots" and "--" in directory.parent.parent.name


def _label(directory: Path) -> str:
    name = directory.name
    if _is_hub_snapshot(directory):
        name = directory.parent.parent.name.rpartition("--")[2]
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name) or "drafter"


def write_slab(
    path: Path,
    size_bytes: int,
    write: Callable[[BinaryIO], None],
    is_done: Callable[[], bool],
    report: Report,
) -> bool:
    """Write a slab at `path`, atomically and under its lock; False where nothing was to do.

    is_done is asked under the lock: another process may have been faster. Raises OSError, after
    which `path` is what it was and no file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked_temporary(path, report) as stream:
        if is_done():
            return False
        free = shutil.disk_usage(path.parent).free
        if free < size_bytes:
            raise OSError(errno.ENOSPC, f"{size_bytes:,} bytes are needed, {free:,} are free")
        stream.truncate(0)
        write(stream)
        put_in_place(stream, temporary(path), path)
    return True


def temporary(path: Path) -> Path:
    """The file that a slab is written into, which is its lock as well."""
    return path.with_name(path.name + TEMPORARY)


def sweep(path: Path) -> bool:
    """Remove what a builder of `path` that died left behind; True where there was something."""
    try:
        if not temporary(path).exists():
            return False
        with open_own(temporary(path)) as stream:
            if not _lock(stream, wait=False) or not _is_at(stream, temporary(path)):
                return False
            temporary(path).unlink()
            return True
    except OSError:
        return False  # nothing there, or not ours to remove


@contextmanager
def _locked_temporary(path: Path, report: Report) -> Iterator[BinaryIO]:
    """PATH.tmp, open and locked; removed in the end unless it was renamed."""
    place = temporary(path)
    stream = _open_locked(path, report)
    try:
        yield stream
    finally:
        if _is_at(stream, place):
            place.unlink()
        stream.close()


def _open_locked(path: Path, report: Report) -> BinaryIO:
    """Open and lock until the locked file is the one that the name stands for.

    The last holder renamed or removed its file, so whoever waited for it starts over.
    """
    place = temporary(path)
    while True:
        stream = open_own(place)
        try:
            if not _lock(stream, wait=False):
                report.note(f"waiting for another process that is writing {path}")
                _lock(stream, wait=True)
            if _is_at(stream, place):
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()


def _lock(stream: BinaryIO, *, wait: bool) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _is_at(stream: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
