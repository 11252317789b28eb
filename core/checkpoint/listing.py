"""The files of a directory by pattern: the one function that lists them.

A directory's own name may hold `[`, `*` or `?`, which pathlib's glob would take for a pattern; and
hidden files (`._model.safetensors`, which macOS leaves on foreign disks) are no data.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import CheckpointError, why_refused
from ..regular_files import NOT_A_FILE


def list_files(directory: Path, *patterns: str) -> list[Path]:
    """The visible files of a directory whose names fit one of the patterns, sorted by name;
    none where there is no such directory."""
    return sorted(
        path
        for path in _entries(directory)
        if any(fnmatchcase(path.name, pattern) for pattern in patterns) and path.is_file()
    )


def require_files(directory: Path, *patterns: str) -> None:
    """CheckpointError where a visible entry whose name fits one of the patterns is no file: a
    library that opens it would fail over a folder, and wait for a pipe without end."""
    for path in sorted(_entries(directory)):
        if any(fnmatchcase(path.name, pattern) for pattern in patterns) and not path.is_file():
            leads_nowhere = path.is_symlink() and not path.exists()
            found = "a link that leads nowhere" if leads_nowhere else NOT_A_FILE
            raise CheckpointError(f"{path} cannot be read: {found}; fetch it again, or remove it")


def list_tree(directory: Path, *patterns: str) -> list[Path]:
    """As list_files, with every visible folder below the directory."""
    found = list_files(directory, *patterns)
    for path in _entries(directory):
        if path.is_dir():
            found += list_tree(path, *patterns)
    return sorted(found)


@contextmanager
def plain_name(directory: Path) -> Iterator[Path]:
    """The directory under a name that has no pattern in it, for mlx-lm, which makes one of it: a
    checkpoint in `m[1]` would be read from a sibling `m1`. Files opened under it may stay open."""
    if glob.escape(str(directory)) == str(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder:
        link = Path(folder) / "checkpoint"
        if glob.escape(str(link)) != str(link):
            raise CheckpointError(
                f"{directory} has one of [ ] ? * in its name, which mlx-lm takes for a pattern, "
                f"and so has the folder for temporary files, {folder}; rename one of them"
            )
        link.symlink_to(directory.resolve(), target_is_directory=True)
        yield link


def _entries(directory: Path) -> Iterator[Path]:
    try:
        entries = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        said = why_refused(exc, "check that it can be read")
        raise CheckpointError(f"{directory} cannot be read: {said}") from exc
    yield from (path for path in entries if not path.name.startswith("."))
