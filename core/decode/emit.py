"""From committed ids to text: eos, stop strings and max_tokens cut here, before anything commits.

The detokenizer is mlx-lm's streaming one; it holds back incomplete UTF-8. Text that could be the
beginning of a stop string is held back too. One code path, so streamed text is the whole text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ..answer.stops import StopSearch
from ..stats import FinishReason
from .detokenize import add_id


class Detokenizer(Protocol):
    """mlx-lm's StreamingDetokenizer."""

    def add_token(self, token: int) -> None:
        """Take one id."""

    def finalize(self) -> None:
        """Let out what was held back."""

    @property
    def last_segment(self) -> str:
        """Text since the last look."""


def prime(detokenizer: Detokenizer, prompt_ids: Sequence[int]) -> None:
    """Show a detokenizer the prompt's end and forget that text.

    mlx-lm's detokenizers drop a space in front of the first text that they see. An answer goes on
    behind a prompt, so that space is part of it: without it, code would lose its indentation.
    """
    for token in reversed(prompt_ids):
        add_id(detokenizer, token)
        detokenizer.finalize()
        if detokenizer.last_segment:  # a lone space is dropped itself and leaves nothing
            return


class Emitter:
    """Takes candidate ids in order, decides where the answer ends, and lets out its text."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        eos_ids: Collection[int],
        stop: Sequence[str],
        max_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._eos_ids = eos_ids
        self._stops = StopSearch(stop)
        self._max_tokens = max_tokens
        self._ready = ""
        self.token_ids: list[int] = []
        self.reason: FinishReason | None = None

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self._max_tokens - len(self.token_ids)

    def take(self, candidates: Sequence[int]) -> int:
        """Emit candidates until one ends the answer; returns how many were emitted.

        The eos id counts as emitted and adds no text; so does the token that completes a stop
        string, whose text is cut before the stop string.
        """
        for count, token in enumerate(candidates, start=1):
            self.token_ids.append(token)
            if token in self._eos_ids:
                self._finish("stop")
            else:
                add_id(self._detokenizer, token)
                self._let_out(self._detokenizer.last_segment)
                if self.reason is None and self.remaining == 0:
                    self._finish("length")
            if self.reason is not None:
                return count
        return len(candidates)

    def drain(self) -> str:
        """Text that became certain since the last call."""
        text, self._ready = self._ready, ""
        return text

    def flush(self) -> str:
        """What was held back when a run is broken off (Ctrl-C)."""
        if self.reason is None:
            self._finish("cancelled")
        return self.drain()

    def _finish(self, reason: FinishReason) -> None:
        self._detokenizer.finalize()
        self._let_out(self._detokenizer.last_segment)
        if self.reason is None:
            self.reason = reason
            self._ready += self._stops.flush()

    def _let_out(self, segment: str) -> None:
        """Release text up to what could still become a stop string; end at a whole one."""
        self._ready += self._stops.feed(segment)
        if self._stops.found is not None:
            self.reason = "stop"
