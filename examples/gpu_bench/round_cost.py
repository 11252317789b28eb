"""Figures c and d: rollback after a partial accept over a round, and a draft over one row.

A rollback is timed as the loop has it: what a fused target leaves cut is evaluated, not sliced.

python examples/gpu_bench/round_cost.py --precision bf16 --context 64
"""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx
from cases import measure_contexts
from models import bind, make_drafter
from results import Row, ratios, summarize
from setting import Arguments, bookmark, filled_cache, verify_call

from dflash_suite.core.cache.kinds import cache_arrays
from dflash_suite.core.decode.drafter import TargetRows

BLOCK, KEEP = 8, 4


def main() -> None:
    """One model, every context asked for."""
    measure_contexts(__doc__, "d", measure)


def measure(given: Arguments, model: Any, context: int, case: str) -> list[Row]:
    """Every part waited for on its own; the decode figure (e) has them overlap."""
    target = bind(model, given.shape)
    drafter = make_drafter(target, given.shape)
    cache = filled_cache(target, context)
    undo = bookmark(cache)
    width = target.config.hidden_size
    taps = mx.random.normal((1, context, 5 * width)).astype(mx.bfloat16)
    ids = mx.zeros((context,), dtype=mx.int32)
    drafter.observe(TargetRows(0, ids, taps, taps[..., :width]))
    mx.eval(drafter.state())
    one_call = verify_call(target, cache, 1, ())
    block_call = verify_call(target, cache, BLOCK, drafter.tap_ids)
    anchor = mx.array([7])
    times: dict[str, list[float]] = {n: [] for n in ("one", "draft", "verify", "rollback")}
    for turn in range(given.repeats + 3):
        marks = [time.perf_counter()]
        one_call()
        marks.append(time.perf_counter())
        undo()
        started = time.perf_counter()
        drafter.draft(anchor, BLOCK - 1).tolist()
        drafted = time.perf_counter()
        result = block_call()
        verified = time.perf_counter()
        target.rollback(cache, result.tape, KEEP, BLOCK - KEEP)
        mx.eval(cache_arrays(cache) if target.rollback_leaves_work else [])  # as the loop does
        ended = time.perf_counter()
        undo()
        if turn >= 3:
            times["one"].append(marks[1] - marks[0])
            times["draft"].append(drafted - started)
            times["verify"].append(verified - drafted)
            times["rollback"].append(ended - verified)
    rounds = [
        sum(parts)
        for parts in zip(*(times[n] for n in ("draft", "verify", "rollback")), strict=True)
    ]
    return [
        summarize(f"c-{case}", ratios(times["rollback"], rounds), 0.03),
        summarize(f"d-{case}", ratios(times["draft"], times["one"]), 0.30),
        *(
            summarize(f"x-{name}-ms-{case}", [1000 * s for s in times[name]])
            for name in ("draft", "rollback")
        ),
    ]


if __name__ == "__main__":
    main()
