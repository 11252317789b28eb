"""Files of others, opened only where they are files.

A pipe under a file's name would be waited for without end, and a device may never end.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

NOT_A_FILE = "it is not a file (a folder, a pipe or a device)"
MOST_BYTES = 2**30
"""Of a file that is read as a whole: far above the largest tokenizer."""


def open_regular(path: Path) -> FileIO:
    """Open a file for reading, unbuffered. Raises OSError, also for what is no regular file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_A_FILE, str(path))
    return open(descriptor, "rb", buffering=0)


def read_regular(path: Path) -> bytes:
    """All of a file. Raises OSError as open_regular, and for one of more than MOST_BYTES."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"{size:,} bytes are more than any such file has", str(path))
        return stream.read()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file. Raises OSError as read_regular, UnicodeDecodeError."""
    return read_regular(path).decode(encoding)
