"""Answers on stdout: reasoning dimmed on a terminal, and nothing but the answer in a pipe."""

from __future__ import annotations

import sys

from ...core.answer.split import Piece, Reasoning, ToolCalls
from ...core.stats import PrefillProgress
from ..text.progress import Progress
from ..text.terminal import AnswerWriter, text_console

DIM, NOT_DIM = "\x1b[2m", "\x1b[22m"


class Screen:
    """Shows one answer after another.

    hides_reasoning: on a terminal too, where a line then says that the model reasons.
    """

    def __init__(self, progress: Progress, *, hides_reasoning: bool) -> None:
        console = text_console()
        self._progress = progress
        self._shows = console.is_terminal and not hides_reasoning
        self._dims = console.is_terminal and not console.is_dumb_terminal
        self._writer = AnswerWriter()
        self._in_reasoning = False
        self._last = ""  # character of the answer, none yet

    def show(self, event: PrefillProgress | Piece) -> None:
        """An event of a turn, as it comes."""
        if isinstance(event, PrefillProgress):
            self._progress.prefill(event.done, event.total)
        elif isinstance(event, Reasoning) and not self._shows:
            self._progress.say("reasoning")
        else:
            self._progress.stop()
            self._turn_to(isinstance(event, Reasoning))
            self._write(event.raw if isinstance(event, ToolCalls) else event.text)

    def end(self) -> None:
        """The answer is over; one without a text is an empty line."""
        self._progress.stop()
        self._turn_back()
        if self._last != "\n":
            self._write("\n")
        self._last = ""

    def break_off(self) -> None:
        """The answer failed: what is said of that begins a new line."""
        if self._last:
            self.end()
        self._progress.stop()

    def _turn_to(self, reasoning: bool) -> None:
        if reasoning == self._in_reasoning:
            return
        self._turn_back()
        if self._last:
            self._write("\n" if self._last == "\n" else "\n\n")
        self._in_reasoning = reasoning
        if reasoning:
            self._dim(DIM)

    def _turn_back(self) -> None:
        self._writer.finish()
        if self._in_reasoning:
            self._dim(NOT_DIM)
        self._in_reasoning = False

    def _write(self, text: str) -> None:
        self._writer.write(text)
        self._last = text[-1:] or self._last

    def _dim(self, code: str) -> None:
        if self._dims:
            sys.stdout.write(code)
            sys.stdout.flush()
