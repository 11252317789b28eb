"""One splitter for answers, streamed or whole: the pieces depend on the text alone, and not on the
portions in which it comes.

What may still become a marker or a stop string is held back. Newlines next to a marker belong to
the markup, as in the templates that render an answer again: those behind a closing marker are
dropped up to the first text or reasoning (later ones part two stretches of it), and so are those in
front of any marker. A call that cannot be read, or is cut, is given as the text that it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .calls import ToolCall, is_inside_value, parse_calls
from .markers import Markers, Tools, begins_in_reasoning, markers_of
from .stops import StopSearch, longest_overlap


@dataclass(frozen=True)
class Reasoning:
    """A portion of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class AnswerText:
    """A portion of the answer itself."""

    text: str


@dataclass(frozen=True)
class ToolCalls:
    """The calls of one stretch of markup, which is `raw` with its markers; one call at least."""

    raw: str
    calls: tuple[ToolCall, ...]


Piece = Reasoning | AnswerText | ToolCalls


class Splitter:
    """Feed it an answer's text as it comes, then finish; both give the pieces that are certain.

    tools: of the request; without any, the markup of a call is text. stop: strings that end the
    answer, looked for in its text alone, not in reasoning and calls; `stopped` is the one that was
    found, after which nothing is given any more. in_reasoning: the prompt opened a block of it.
    """

    def __init__(
        self,
        markers: Markers,
        tools: Tools | None = None,
        stop: Sequence[str] = (),
        in_reasoning: bool = False,
    ) -> None:
        self._think = markers.think or ("", "")
        self._call = (markers.call if tools else None) or ("", "")
        self._parse = markers.parse
        self._tools = tools or ()
        self._openers = [one for one in (self._think[0], self._call[0]) if one]
        self._stops = StopSearch(stop)
        self._buffer = ""
        self._pieces: list[Piece] = []
        self._given: set[type] = set()  # kinds of pieces that there were
        self._behind_marker = False  # newlines may be those of a marker
        self._newlines = ""  # in front of the call that is being read
        self._looked_at, self._first_end = 0, 0  # of the call: searched so far; its first closing
        self.state: Literal["text", "reasoning", "call"] = "text"
        if in_reasoning:
            self._open_reasoning()

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def feed(self, text: str) -> list[Piece]:
        """The pieces that became certain with this text."""
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> list[Piece]:
        """The pieces that were held back, at the end of the answer."""
        return self._run(final=True)

    def _run(self, final: bool) -> list[Piece]:
        steps = {"text": self._text, "reasoning": self._reasoning, "call": self._in_call}
        while self.stopped is None and steps[self.state](final):
            pass
        if self.stopped is not None:
            self._buffer = ""
        pieces, self._pieces = self._pieces, []
        return merged(pieces)

    def _text(self, final: bool) -> bool:
        """Whether there is more to do; so are the two below."""
        found = [(at, one) for one in self._openers if (at := self._buffer.find(one)) >= 0]
        if not found:
            is_markup = self._behind_marker and not self._buffer.strip("\n")
            self._give_text("" if final and is_markup else self._take(self._openers, final))
            if final:
                self._end_text()
            return False
        at, opener = min(found)
        before = self._buffer[:at]
        text = before.rstrip("\n")
        self._give_text(text)
        self._end_text()
        self._buffer = self._buffer[at + len(opener) :]
        if opener == self._think[0]:
            self._open_reasoning()
        else:
            self.state, self._newlines = "call", before[len(text) :]
            self._looked_at = self._first_end = 0
        return True

    def _open_reasoning(self) -> None:
        self.state, self._behind_marker = "reasoning", True

    def _reasoning(self, final: bool) -> bool:
        opener, closer = self._think
        if self._behind_marker:
            inner = self._buffer.lstrip("\n")
            if inner.startswith(opener):  # models write again what the prompt has written
                self._buffer = inner[len(opener) :]
                return True
            if opener.startswith(inner) and not final:
                return False
            self._behind_marker = False
            if Reasoning not in self._given:
                self._buffer = inner
        text, found, after = self._buffer.partition(closer)
        if not found:
            self._give(Reasoning, self._take([closer], final))
            return False
        self._give(Reasoning, text.rstrip("\n"))
        self._buffer = after
        self.state, self._behind_marker = "text", True
        return True

    def _in_call(self, final: bool) -> bool:
        opener, closer = self._call
        at = self._buffer.find(closer, self._looked_at) if closer else -1
        if at < 0 and not final:
            self._looked_at = max(self._looked_at, len(self._buffer) - len(closer) + 1)
            return False
        end = at + len(closer) if at >= 0 else len(self._buffer)
        body = self._buffer[:at] if at >= 0 else self._buffer
        is_closed = at >= 0 or not closer
        calls = parse_calls(body, self._parse, self._tools) if is_closed and self._parse else ()
        if not calls and at >= 0 and is_inside_value(body):
            self._first_end = self._first_end or end
            self._looked_at = end
            return True
        if not calls and self._first_end:  # no later closing marker made a call of it
            end = self._first_end
        raw, self._buffer = opener + self._buffer[:end], self._buffer[end:]
        if calls:
            self._given.add(ToolCalls)
            self._pieces.append(ToolCalls(raw, calls))
        else:
            self._give_text(self._newlines + raw)
        self.state, self._behind_marker = "text", bool(calls)
        return True

    def _take(self, markers: Iterable[str], final: bool) -> str:
        """What of the buffer is certain: no end of it could begin a marker, with the newlines in
        front of it."""
        end = len(self._buffer)
        if not final and markers:
            end = len(self._buffer[: end - longest_overlap(self._buffer, markers)].rstrip("\n"))
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        return text

    def _give_text(self, text: str) -> None:
        if self._behind_marker and AnswerText not in self._given:
            text = text.lstrip("\n")
        if text:
            self._behind_marker = False
            self._give(AnswerText, self._stops.feed(text))

    def _end_text(self) -> None:
        """No stop string goes on behind a marker."""
        self._give(AnswerText, self._stops.flush())

    def _give(self, kind: type[Reasoning] | type[AnswerText], text: str) -> None:
        if text:
            self._given.add(kind)
            self._pieces.append(kind(text))


def splitter_for(
    tokenizer: Any, prompt_ids: Sequence[int], tools: Tools | None = None, stop: Sequence[str] = ()
) -> Splitter:
    """The splitter of the answer to a rendered prompt. tokenizer: mlx-lm's TokenizerWrapper."""
    markers = markers_of(tokenizer)
    return Splitter(markers, tools, stop, begins_in_reasoning(tokenizer, prompt_ids, markers))


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece; calls stay apart."""
    made: list[Piece] = []
    for piece in pieces:
        last = made[-1] if made else None
        if isinstance(piece, AnswerText) and isinstance(last, AnswerText):
            made[-1] = AnswerText(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            made[-1] = Reasoning(last.text + piece.text)
        else:
            made.append(piece)
    return made
