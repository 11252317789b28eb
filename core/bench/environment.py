"""Where a benchmark was run: device, versions, commit, and the very bytes of the models."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..checkpoint.listing import list_files

PACKAGES = ("mlx", "mlx-lm", "transformers", "numpy")
HASHED = ("*.safetensors", "*.json", "*.jinja")


def describe_device() -> dict[str, Any]:
    """What computes: MLX's device, its name, processor cores and memory (None where unknown)."""
    device = mx.default_device()
    kind = "cpu" if device == mx.cpu else "gpu"
    info = mx.device_info(device)
    return {
        "kind": kind,
        "name": str(info.get("device_name") or platform.processor() or "unknown"),
        "cores": _usable_cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def describe_versions(suite_version: str) -> dict[str, str | None]:
    """Versions of the suite, Python and the packages that compute."""
    found: dict[str, str | None] = {"dflash-suite": suite_version, "python": _python()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def suite_commit() -> str | None:
    """Commit of the suite's own checkout, `+changes` where files differ from it; None elsewhere."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head}+changes" if _git(root, "status", "--porcelain", "-uno") else head


def hash_directory(directory: Path) -> dict[str, str]:
    """sha256 of every weights, config and template file of a checkpoint, by file name."""
    files = list_files(directory, *HASHED)
    found: dict[str, str] = {}
    for file in files:
        with file.open("rb") as stream:
            found[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _git(root: Path, *args: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", *args], cwd=root, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None
