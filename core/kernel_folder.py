"""Where MLX compiles its kernels on a CPU: `mlx` in the folder for temporary files.

MLX writes a library there for each new expression, and loads what is there already under its name;
so the folder must be writable, and nobody else should be able to put a library into it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import ResourceError
from .settings import temporary_directory

ADVICE = "set TMPDIR to a folder of your own"


def kernel_folder() -> Path:
    """The folder, whether it is there yet or not."""
    return temporary_directory() / "mlx"


def folder_problem(folder: Path) -> str | None:
    """Why MLX cannot compile there; None where it can."""
    if not folder.parent.is_dir():
        return f"{folder.parent}, the folder for temporary files, is not there"
    for path in (*inner_folders(folder), folder, folder.parent):
        if path.is_symlink() or path.exists():
            if not path.is_dir():
                return f"{path} is not a folder"
            if not os.access(path, os.W_OK | os.X_OK):
                return f"{path} belongs to {_owner(path)} and cannot be written"
            return None
    return None


def folder_risk(folder: Path) -> str | None:
    """Who else could put a library there that MLX would run; None where nobody can."""
    for path in (folder, *inner_folders(folder)):
        try:
            state = path.stat()
        except OSError:
            continue
        if state.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to {_owner(path)}, whose libraries MLX would run"
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} can be written by others, whose libraries MLX would run"
    return None


def require_kernel_folder() -> None:
    """ResourceError where MLX cannot compile its kernels."""
    problem = folder_problem(kernel_folder())
    if problem is not None:
        raise ResourceError(
            f"MLX compiles its CPU kernels in {kernel_folder()}: {problem}; {ADVICE}"
        )


def inner_folders(folder: Path) -> list[Path]:
    """The folders of versions and devices inside, the deepest first; none where nobody may look."""
    try:
        return sorted((path / "cpu" for path in folder.iterdir()), reverse=True)
    except OSError:
        return []


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError, NotImplementedError):
        return "another user"
