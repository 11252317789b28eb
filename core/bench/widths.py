"""What a verify pass costs by its number of rows: the price of a longer block on this device.

A separate measurement on one cache; each pass keeps one row and rolls the others back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import mlx.core as mx

from ..cache.kinds import cache_arrays
from ..decode.choose import greedy
from ..target.target import Target


def measure_widths(
    target: Target,
    prompt_ids: Sequence[int],
    widths: Sequence[int],
    repeats: int,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Median seconds of a pass with the head, by rows; the first round of passes is discarded."""
    room = len(prompt_ids) + (repeats + 1) * len(widths) + max(widths)
    cache = target.make_cache(room)
    mx.eval(target.forward_with_taps(mx.array([list(prompt_ids)]), cache).hidden)
    times: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(repeats + 1):
        for width in sorted(widths, reverse=repeat % 2 == 1):
            rows = [prompt_ids[index % len(prompt_ids)] for index in range(width)]
            mx.eval(cache_arrays(cache))
            started = clock()
            result = target.verify_rows(mx.array([rows]), cache, ())
            mx.eval(greedy(target.logits_from_hidden(result.hidden)[0]))
            spent = clock() - started
            target.rollback(cache, result.tape, 1, width - 1)
            if repeat:
                times[width].append(spent)
    return {width: median(found) for width, found in times.items()}
