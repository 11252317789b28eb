"""Stop strings in a text that comes in pieces: nothing of one is ever let out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class StopSearch:
    """Lets text out up to what could still become a stop string.

    Of several stop strings the one that is complete first ends the text; of those that end
    together, the one that begins first. So the pieces in which a text comes make no difference.
    `found` is the stop string that ended it, None until then.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that became certain; nothing after a stop string."""
        if self.found is not None:
            return ""
        text = self._held + text
        begins = [(text.find(stop), stop) for stop in self._stop]
        found = [(index + len(stop), index, stop) for index, stop in begins if index >= 0]
        if found:
            _, index, self.found = min(found)
            self._held = ""
            return text[:index]
        keep = longest_overlap(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, where no further text can complete it."""
        text, self._held = self._held, ""
        return text


def longest_overlap(text: str, wanted: Iterable[str]) -> int:
    """Length of the longest end of `text` with which one of `wanted` begins, but is not over."""
    return max((_overlap(text, one) for one in wanted), default=0)


def _overlap(text: str, wanted: str) -> int:
    for length in range(min(len(text), len(wanted) - 1), 0, -1):
        if text.endswith(wanted[:length]):
            return length
    return 0
