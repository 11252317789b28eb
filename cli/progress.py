"""Progress of loading and of a long prefill, on a terminal's stderr only."""

from __future__ import annotations

from types import TracebackType

from rich.status import Status

from .render import stderr_console

LONG_PREFILL_TOKENS = 512
"""Shorter prompts are done before anyone could read a progress line."""


class Progress:
    """A spinner line that says what is being waited for; silent where stderr is no terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._console = stderr_console()
        self._enabled = enabled and self._console.is_terminal
        self._status: Status | None = None

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
            self._status = self._console.status(message)
            self._status.start()
        self._status.update(message)

    def prefill(self, done: int, total: int) -> None:
        """Prompt tokens done so far."""
        if total >= LONG_PREFILL_TOKENS:
            self.say(f"prefill {done:,} of {total:,} tokens ({done / total:.0%})")

    def stop(self) -> None:
        """Take the line away, before the answer starts."""
        if self._status is not None:
            self._status.stop()
            self._status = None
