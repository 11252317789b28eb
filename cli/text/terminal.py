"""The streams: what comes from outside is shown on a terminal and never acts on it.

Text of a model, of files and of names may hold control characters. On a terminal they are shown
escaped; in a pipe or a file every byte stays as it is. Nothing that comes from outside is markup.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 but tab and newline, DEL, and C1: what a terminal may take for a command."""
RETURNS = re.compile("\r+\n")


def escaped(text: str) -> str:
    """Text with its control characters spelled out; a carriage return before a newline is dropped,
    since it changes nothing that is seen."""
    return CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", RETURNS.sub("\n", text))


def text_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console that takes no markup and no emoji names, and guesses at no highlights."""
    return Console(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)


def widened(console: Console, columns: int) -> Console:
    """The same stream for lines of up to so many columns, however narrow a terminal is."""
    return Console(
        file=console.file,
        width=columns,
        force_terminal=console.is_terminal,
        no_color=console.no_color,
        markup=False,
        emoji=False,
        highlight=False,
    )


def styled(console: Console, text: str, style: str = "") -> Text:
    """Text of a style, its control characters spelled out where the console is a terminal."""
    return Text(escaped(text) if console.is_terminal else text, style=style)


def print_text(text: str) -> None:
    """Lines for people on stdout."""
    print(escaped(text) if sys.stdout.isatty() else text)


def print_document(document: Mapping[str, Any], *, flush: bool = False) -> None:
    """One JSON document, a line on stdout; ASCII alone where stdout's encoding has no more.

    JSON has no NaN and no infinity: a figure that does not exist is null.
    """
    encoding = (sys.stdout.encoding or "ascii").lower().replace("_", "-")
    ascii_only = encoding not in ("utf-8", "utf8")
    if not ascii_only and hasattr(sys.stdout, "reconfigure"):  # lone surrogates, which an id may
        sys.stdout.reconfigure(errors="backslashreplace")  # hold, become JSON's own escapes
    text = json.dumps(finite(document), ensure_ascii=ascii_only, allow_nan=False)
    print(text, flush=flush)


def finite(value: Any) -> Any:
    """A document with null in place of every NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


class AnswerWriter:
    """Writes an answer to stdout as it comes, in pieces of any size."""

    def __init__(self) -> None:
        if hasattr(sys.stdout, "reconfigure"):  # never fail on a terminal that is not UTF-8
            sys.stdout.reconfigure(errors="backslashreplace")
        self._is_terminal = sys.stdout.isatty()
        self._held = ""

    def write(self, piece: str) -> None:
        """Write a piece; on a terminal a carriage return waits for what follows it."""
        if self._is_terminal:
            piece = self._held + piece
            kept = len(piece.rstrip("\r"))
            piece, self._held = escaped(piece[:kept]), piece[kept:]
        if piece:
            sys.stdout.write(piece)
            sys.stdout.flush()

    def finish(self) -> None:
        """Write what waited."""
        held, self._held = self._held, ""
        if held:
            sys.stdout.write(escaped(held))
            sys.stdout.flush()
