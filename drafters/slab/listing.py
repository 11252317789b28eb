"""What slabs there are, what each is worth, and which can go."""

from __future__ import annotations

import fcntl
import re
from dataclasses import dataclass
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


@resource_errors()
def prune_slabs(entries: list[SlabEntry]) -> list[SlabEntry]:
    """Remove what is stale, orphaned, damaged or left over; returns what was removed."""
    removed = []
    for entry in entries:
        if not entry.removable:
            continue
        if entry.state == "leftover":
            if not sweep(entry.path.with_name(entry.path.name.removesuffix(TEMPORARY))):
                continue
        else:
            entry.path.unlink(missing_ok=True)
        removed.append(entry)
    return removed


def _inspect(path: Path, verify: bool) -> SlabEntry | None:
    try:
        size = path.stat().st_size
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
                path, state, size, detail, slab.facts.source_path, options.bits, options.group_size
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
