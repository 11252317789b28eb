"""Figures a, b and x-verify: what a verify pass of several rows costs, against one row.

python examples/gpu_bench/verify_cost.py --precision bf16 --context 64
"""

from __future__ import annotations

from typing import Any

from cases import measure_contexts
from models import bind, draft_config
from results import Row, ratios, summarize
from setting import Arguments, bookmark, filled_cache, stock_call, stock_copy, verify_call
from timing import Prepared, interleave

WIDTHS = (1, 2, 4, 6, 8, 12, 16)


def main() -> None:
    """One model, every context asked for."""
    measure_contexts(__doc__, "x-verify-16", measure)


def measure(given: Arguments, model: Any, context: int, case: str) -> list[Row]:
    """Rows of one context: taps and tape on, against one row of ours and of mlx-lm."""
    target = bind(model, given.shape)
    taps = draft_config(given.shape).target_layer_ids
    cache = filled_cache(target, context)
    stock = stock_copy(model, cache)
    undo, undo_stock = bookmark(cache), bookmark(stock)
    calls: dict[str, Prepared] = {
        f"{width}": (verify_call(target, cache, width, taps if width > 1 else ()), undo)
        for width in WIDTHS
    }
    for width in (1, 8):
        call = stock_call(model, stock, width, target.config.vocab_size)
        calls[f"stock-{width}"] = (call, undo_stock)
    times = interleave(calls, given.repeats)
    one, q4, moe = times["1"], given.precision == "q4", given.shape == "35b-a3b"
    rows = [
        summarize(f"a-8-{case}", ratios(times["8"], one), 1.6 if q4 else 1.35),
        summarize(f"a-16-{case}", ratios(times["16"], one), 1.6),
        summarize(f"b-{case}", ratios(one, times["stock-1"]), 1.02),
    ]
    if moe:
        rows = []
    rows += [summarize(f"x-verify-{w}-{case}", _ms(times[f"{w}"])) for w in WIDTHS]
    return rows + [summarize(f"x-mlx-lm-{w}-{case}", _ms(times[f"stock-{w}"])) for w in (1, 8)]


def _ms(seconds: list[float]) -> list[float]:
    return [1000 * value for value in seconds]


if __name__ == "__main__":
    main()
