"""What slabs there are, what each is worth, and which can go."""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ...core.checkpoint.listing import list_files
from ...core.checkpoint.weight_source import content_hash, read_source
from ...core.errors import DflashError, SlabError, resource_errors
from .file_format import Slab, is_marked, open_slab
from .store import SUFFIX, TEMPORARY, slab_directory, sweep

State = Literal["current", "touched", "stale", "orphaned", "damaged", "leftover", "busy", "foreign"]
REMOVABLE: tuple[State, ...] = ("stale", "orphaned", "damaged", "leftover")
OUR_TEMPORARY = re.compile(r"(dflash|.+-[0-9a-f]{12})-int\d+-g\d+\.slab\.tmp")
"""The names under which slabs are built (store.py); others' files are never removed."""


@dataclass(frozen=True)
class SlabEntry:
    """One file. state: current; touched (the source's time changed: its content decides at the
    next use); stale (the source has other weights); orphaned (no source); damaged; leftover (of a
    builder that died); busy (being written, or not to be read); foreign (not made here)."""

    path: Path
    state: State
    size_bytes: int
    detail: str
    source_path: str = ""
    bits: int | None = None
    group_size: int | None = None
    used_sec: float = 0.0

    @property
    def removable(self) -> bool:
        """Whether nothing is lost with it."""
        return self.state in REMOVABLE

    def to_dict(self) -> dict[str, Any]:
        """One element of `slabs` in `--json`."""
        return {
            "path": str(self.path),
            "state": self.state,
            "size_bytes": self.size_bytes,
            "detail": self.detail,
            "source_path": self.source_path,
            "bits": self.bits,
            "group_size": self.group_size,
        }


@resource_errors()
def list_slabs(checkpoint: Path | None = None, *, verify: bool = False) -> list[SlabEntry]:
    """The slabs in the user's cache directory, and those beside `checkpoint`.

    verify: check all data and hash the sources, instead of headers and quick keys alone.
    """
    found = list_files(slab_directory(), f"*{SUFFIX}*")
    if checkpoint is not None:
        found += list_files(checkpoint.resolve(), f"dflash-int*{SUFFIX}*")
    files = sorted(path for path in found if path.suffix in (SUFFIX, TEMPORARY))
    return [entry for path in files if (entry := _inspect(path, verify)) is not None]


USABLE: tuple[State, ...] = ("current", "touched")
DAY_SEC = 86_400.0


@dataclass(frozen=True)
class Bounds:
    """Of the slabs that could still be used. older_than_days: since their last use; to_bytes: of
    all that stay, the least recently used going first. None: no bound."""

    older_than_days: float | None = None
    to_bytes: int | None = None


def beyond_bounds(entries: list[SlabEntry], bounds: Bounds, now_sec: float) -> list[SlabEntry]:
    """Usable slabs that a bound lets go, the least recently used first."""
    usable = sorted((one for one in entries if one.state in USABLE), key=lambda one: one.used_sec)
    gone = []
    if bounds.older_than_days is not None:
        before = now_sec - bounds.older_than_days * DAY_SEC
        gone = [entry for entry in usable if entry.used_sec < before]
    left = [entry for entry in usable if entry not in gone]
    if bounds.to_bytes is not None:
        held = sum(entry.size_bytes for entry in left)
        for entry in left:
            if held <= bounds.to_bytes:
                break
            gone.append(entry)
            held -= entry.size_bytes
    return gone


@resource_errors()
def prune_slabs(entries: list[SlabEntry], bounds: Bounds | None = None) -> list[SlabEntry]:
    """Remove what is stale, orphaned, damaged or left over, and what is beyond the bounds; returns
    what was removed. A slab in use stays readable for whoever has it open."""
    removed = []
    beyond = beyond_bounds(entries, bounds or Bounds(), time.time())
    for entry in entries:
        if not entry.removable and entry not in beyond:
            continue
        if entry.state == "leftover":
            if not sweep(entry.path.with_name(entry.path.name.removesuffix(TEMPORARY))):
                continue
        else:
            entry.path.unlink(missing_ok=True)
        removed.append(entry)
    return removed


def _inspect(path: Path, verify: bool) -> SlabEntry | None:
    """One file as it is; looking at it is no use of it."""
    try:
        before = path.stat()
    except OSError:
        return None  # renamed or removed a moment ago
    entry = _judge(path, before.st_size, verify)
    with suppress(OSError):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    used_sec = max(before.st_atime, before.st_mtime)
    return None if entry is None else replace(entry, used_sec=used_sec)


def _judge(path: Path, size: int, verify: bool) -> SlabEntry | None:
    try:
        if path.suffix == TEMPORARY and not OUR_TEMPORARY.fullmatch(path.name):
            return SlabEntry(path, "foreign", size, "no build has such a temporary name")
        if path.suffix == TEMPORARY:
            state: State = "busy" if _is_locked(path) else "leftover"
            return SlabEntry(path, state, size, "unfinished file of a build")
        with open_slab(path) as slab:
            if verify:
                slab.verify()
            state, detail = _judge_source(slab, verify)
            options = slab.facts.options
            return SlabEntry(
                path,
                state,
                size,
                detail,
                slab.facts.source_path,
                options.bits,
                options.group_size,
            )
    except FileNotFoundError:
        return None  # renamed or removed a moment ago
    except SlabError as exc:
        if is_marked(path):
            return SlabEntry(path, "damaged", size, str(exc))
        return SlabEntry(path, "foreign", size, "it does not begin as a slab does: not made here")
    except OSError as exc:
        return SlabEntry(path, "busy", 0, f"cannot be read: {exc.strerror}")


def _judge_source(slab: Slab, verify: bool) -> tuple[State, str]:
    directory = Path(slab.facts.source_path)
    if not directory.is_dir():
        return "orphaned", f"{directory} is not there any more"
    try:
        source = read_source(directory)
    except (DflashError, OSError) as exc:
        return "orphaned", str(exc)
    if not source.is_like(slab.facts.source_files):
        return "stale", "the source has other weights now"
    if verify:
        same = content_hash(source) == slab.facts.content
        return ("current", "content hashed") if same else ("stale", "the source's content changed")
    if source.files != slab.facts.source_files:
        return "touched", "the source has another time or name; its content decides at the next use"
    return "current", ""


def _is_locked(path: Path) -> bool:
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
