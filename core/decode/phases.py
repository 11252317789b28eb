"""Phase times, from a separate pass that synchronises with the device at every mark.

Never on in a run whose speed is quoted: each mark waits for the arrays it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx


class PhaseTimer:
    """Adds the time since the last mark to a phase; does nothing unless enabled."""

    def __init__(
        self, clock: Callable[[], float], totals: dict[str, float], *, enabled: bool
    ) -> None:
        self._clock = clock
        self._totals = totals
        self.enabled = enabled
        self._last = clock() if enabled else 0.0

    def start(self) -> None:
        """Forget the time until now."""
        if self.enabled:
            self._last = self._clock()

    def mark(self, phase: str, arrays: Sequence[mx.array]) -> None:
        """Wait for `arrays`, then book the time since the last mark under `phase`, in seconds."""
        if not self.enabled:
            return
        mx.eval(list(arrays))
        now = self._clock()
        self._totals[phase] = self._totals.get(phase, 0.0) + now - self._last
        self._last = now
