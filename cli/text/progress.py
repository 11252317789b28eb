"""Progress of loading and of a long prefill, on a terminal's stderr only."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.status import Status

from .footer import print_note, stderr_console
from .terminal import escaped, styled

if TYPE_CHECKING:
    from ...core.report import Report

LONG_PREFILL_TOKENS = 512
"""Shorter prompts are done before anyone could read a progress line."""


class Progress:
    """A spinner line that says what is being waited for, or a bar of bytes; silent where stderr
    is not a terminal."""

    def __init__(self, *, enabled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = stderr_console()
        self._clock = clock
        self._began: tuple[int, float] | None = None  # tokens and time at the prefill's start
        self._enabled = enabled and self._console.is_terminal
        self._status: Status | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def say(self, message: str) -> None:
        """Show one line in place of the last."""
        if not self._enabled:
            return
        if self._status is None:
            self.stop()
            self._status = self._console.status(styled(self._console, message))
            self._status.start()
        self._status.update(styled(self._console, message))

    def prefill(self, done: int, total: int) -> None:
        """Prompt tokens done so far."""
        if total < LONG_PREFILL_TOKENS:
            return
        if self._began is None:
            self._began = done, self._clock()
        start, began = self._began
        left = ""
        if start < done < total:
            sec = (self._clock() - began) * (total - done) / (done - start)
            left = f", about {sec:.0f} s left" if sec >= 1 else ""
        self.say(f"prefill {done:,} of {total:,} tokens ({done / total:.0%}{left})")

    def bytes(self, label: str, done: int, total: int) -> None:
        """A bar in place of the line; a new label starts a new one."""
        if not self._enabled:
            return
        if self._bar is None:
            self.stop()
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
            )
            self._bar = Bar(*columns, TimeRemainingColumn(), console=self._console, transient=True)
            self._bar.start()
        label = escaped(label)
        task = next((task for task in self._bar.tasks if task.description == label), None)
        task_id = self._bar.add_task(label) if task is None else task.id
        self._bar.update(task_id, completed=done, total=total)

    def report(self, *, notes: bool) -> Report:
        """Where a slab's notes and bytes go: stderr; notes even where it is not a terminal."""
        from ...core.report import Report

        def note(message: str) -> None:
            self.stop()
            if notes:
                print_note(message)

        return Report(note, self.bytes, self.say)

    def stop(self) -> None:
        """Take the line or the bar away, before the answer starts."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._status is not None:
            self._status.stop()
            self._status = None
