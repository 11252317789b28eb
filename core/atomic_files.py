"""Files that stand there whole or not at all, whatever ends the process or fills the disk.

Data goes into a temporary file of the same directory, reaches the disk, and takes its name in one
step. Links are never followed: what stands at a temporary name is replaced, not written through.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

MODE = 0o666
"""Less the user's umask, as any program's new file has it."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def write_whole(path: Path, data: bytes) -> None:
    """Make `data` the contents of `path`, under an unpredictable temporary name until then.

    Makes the directory. Raises OSError that names `path`, which is then what it was; nothing is
    left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(os.open(temporary, NEW, MODE), "wb") as stream:
            stream.write(data)
            stream.flush()
            put_in_place(stream, temporary, path)
    except BaseException as exc:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(exc, OSError):  # a full disk is told of a number, not of a name
            raise OSError(exc.errno, exc.strerror, str(path)) from exc
        raise


def put_in_place(stream: BinaryIO, temporary: Path, path: Path) -> None:
    """Give the written file at `temporary`, still open as `stream`, its name.

    Raises OSError, and `path` is what it was then. The directory reaches the disk too where it can
    be asked to: some file systems refuse that, and the file stands there whole all the same.
    """
    os.fsync(stream.fileno())
    os.replace(temporary, path)
    with suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def open_own(path: Path) -> BinaryIO:
    """Open a file of ours for reading and writing, unbuffered, made where there is none.

    A link, a file with another name elsewhere, or another user's file at this name is taken away
    first: what it leads to is never touched. Raises OSError, a PermissionError where somebody holds
    a lock on such a file: another user's process is at work on it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    while True:
        if not _is_ours(path):
            _take_away(path)
        try:
            descriptor = os.open(path, flags, MODE)
        except OSError:
            if path.is_symlink():  # made since it was looked at
                continue
            raise
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
            return open(descriptor, "r+b", buffering=0)
        os.close(descriptor)
        _take_away(path)


def _take_away(path: Path) -> None:
    """Remove what is not ours, under its lock where it is a file."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
            return
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        message = "another user's process is writing it"
        raise PermissionError(errno.EACCES, message, str(path)) from None
    finally:
        os.close(descriptor)


def _is_ours(path: Path) -> bool:
    """Whether there is nothing, or a plain file of this user's that has no other name."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid()
