"""Where a long step says what it does: a line in passing, a note that stays, and progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _ignore(message: str) -> None:
    """Say nothing."""


def _ignore_bytes(label: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Report:
    """What the suite below the command line tells its caller; by default nobody listens.

    note: one line that the user should see; progress: (what, bytes done, bytes in all);
    say: one line about what is being waited for, gone with the next one.
    """

    note: Callable[[str], None] = _ignore
    progress: Callable[[str, int, int], None] = _ignore_bytes
    say: Callable[[str], None] = _ignore

    def bytes_of(self, label: str) -> Callable[[int, int], None]:
        """Progress of one named step: (bytes done, bytes in all)."""
        return lambda done, total: self.progress(label, done, total)


SILENT = Report()
