"""What the user says, a turn at a time: a line of a pipe, or lines edited on a terminal."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from typing import Protocol

from ...core.errors import PromptError

PROMPT, CONTINUED = "> ", "  "


class Lines(Protocol):
    """Where turns come from."""

    interactive: bool
    """Whether somebody sits at a terminal."""

    def read(self) -> str | None:
        """The next turn, None at the end. Raises PromptError for one that is no text, and
        KeyboardInterrupt for Ctrl-C."""


class PipedLines:
    """A pipe or a file: each line is a turn. A byte order mark in front of the first is none."""

    interactive = False

    def __init__(self) -> None:
        self._number = 0

    def read(self) -> str | None:
        """The next line, without its end."""
        line = sys.stdin.buffer.readline()
        self._number += 1
        if not line:
            return None
        if self._number == 1:
            line = line.removeprefix(BOM_UTF8)
        try:
            return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as exc:
            raise PromptError(
                f"line {self._number} is not UTF-8 text ({exc}); convert it first"
            ) from exc


class EditedLines:
    """A terminal: lines are edited, earlier ones come back, and a turn may have several.

    Enter sends; Alt-Enter, or a backslash in front of Enter, begins another line. What is pasted
    stays together.
    """

    interactive = True

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.enums import DEFAULT_BUFFER
        from prompt_toolkit.filters import has_focus
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.output import create_output
        from prompt_toolkit.output.vt100 import Vt100_Output

        keys = KeyBindings()
        writing = has_focus(DEFAULT_BUFFER)  # and not searching

        @keys.add("escape", "enter", filter=writing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("enter", filter=writing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.text_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        output = create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # asks where the cursor is, and complains where none answers
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            key_bindings=keys,
            prompt_continuation=CONTINUED,
            output=output,
        )

    def read(self) -> str | None:
        """The next turn, as it was typed."""
        try:
            return self._session.prompt(PROMPT)
        except EOFError:
            return None


def open_lines() -> Lines:
    """Edited lines where stdin is a terminal and another stream is one to show them on."""
    shown = sys.stdout.isatty() or sys.stderr.isatty()
    return EditedLines() if sys.stdin.isatty() and shown else PipedLines()
