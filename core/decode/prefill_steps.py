"""How many tokens of a prompt each pass takes.

Where the passes that a prompt is cut into change no bit, they are short enough that somebody who
watches sees them end; elsewhere they are mlx-lm's.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_TOKENS = 256
"""A pass of so many is about as fast by the token as a wider one."""
AIM_SEC = 0.5
"""Between two signs of life."""


class PrefillSteps:
    """most: tokens of the widest pass; clock: seconds, None where all passes are that wide."""

    def __init__(self, most: int, clock: Callable[[], float] | None) -> None:
        self._most = most
        self._clock = clock
        self._tokens = min(FIRST_TOKENS, most) if clock is not None else most
        self._began: float | None = None

    def next(self, remaining: int) -> int:
        """Tokens of the next pass, which begins now, where it may take `remaining` at most."""
        if (
            self._clock is not None and remaining > self._tokens
        ):  # else there is none to judge by it
            self._began = self._clock()
        return min(self._tokens, remaining)

    def finish(self, tokens: int) -> None:
        """The pass of so many tokens is over: the next one is at most twice as wide."""
        if self._clock is None or self._began is None:
            return
        elapsed_sec, self._began = self._clock() - self._began, None
        if elapsed_sec > 0:
            fitting = int(tokens * AIM_SEC / elapsed_sec)
            self._tokens = max(1, min(fitting, 2 * tokens, self._most))
