"""Room for what generate would download: only for hub ids that are not here yet."""

from __future__ import annotations

from dataclasses import dataclass

from ..results import CheckResult
from ..units import readable
from .check import Check, Words, check


@dataclass(frozen=True)
class Download:
    """needed: bytes of all files that are missing; free: room in the hub's cache; place: that."""

    needed_bytes: int
    free_bytes: int
    place: str


@check(
    "machine.download",
    "room for the download in the hub's cache",
    "make room there, or point HF_HOME to another disk",
)
def download(say: Words, room: Download) -> CheckResult:
    """The hub's client stops in the middle of a file otherwise."""
    found = (
        f"{readable(room.needed_bytes)} to fetch, {readable(room.free_bytes)} free at {room.place}"
    )
    return say.passed(found) if room.needed_bytes <= room.free_bytes else say.warned(found)


DOWNLOAD_CHECKS: tuple[Check[Download], ...] = (download,)
