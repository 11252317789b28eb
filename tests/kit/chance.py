"""How far counts may stray from what was expected before chance no longer explains it."""

from __future__ import annotations

import math


def critical(freedom: int, deviations: float = 4.75) -> float:
    """Chi-square that is passed once in a million (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + deviations * math.sqrt(part)) ** 3
