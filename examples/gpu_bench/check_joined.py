"""Is a layer in one launch bitwise its steps one by one, every time? An 8-layer target, a draft.

python examples/gpu_bench/check_joined.py --precision bf16
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, cast

import mlx.core as mx
from models import SHAPES, bind, make_drafter, make_model
from setting import bookmark, filled_cache, no_gpu, parse, prompt_ids

from dflash_suite.core.cache.kinds import cache_arrays
from dflash_suite.core.cuda.backbone import FusedBackbone
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.target.target import Target

LAYERS, TURNS, WIDTHS, ALL = 8, 40, (1, 2, 8, 16), 1 << 60


def main() -> int:
    """Print a line a width; exit 1 where one turn differs. A missing wait would show as a race."""
    given = parse(__doc__ or "")
    if no_gpu():
        return 1
    SHAPES[given.shape]["num_hidden_layers"] = LAYERS
    model = make_model(given.shape, given.precision)
    config, compiled = bind(model, given.shape).config, cast(Any, mx.compile)
    apart, joined = (
        Target(FusedBackbone(model, CudaKernels(join_below), compiled), config)
        for join_below in (0, ALL)
    )
    wrong = 0
    for context in given.contexts:
        for rows in WIDTHS:
            passes = [one_pass(target, context, rows) for target in (joined, apart)]
            wrong += compare(f"{context} tokens, {rows} rows", passes)
    return int(wrong > 0 or check_draft(joined, given.shape) > 0)


def one_pass(target: Target, context: int, rows: int) -> Callable[[], list[mx.array]]:
    """A recorded pass over a filled cache that is put back: its hidden rows, and the cache."""
    cache = filled_cache(target, context)
    undo = bookmark(cache)
    ids = prompt_ids(rows, target.config.vocab_size, seed=5)

    def call() -> list[mx.array]:
        result = target.verify_rows(ids, cache, (1, 3))
        made = [result.hidden, *cache_arrays(cache)]
        mx.eval(made)
        undo()
        return made

    return call


def compare(label: str, calls: list[Callable[[], list[mx.array]]]) -> int:
    """TURNS calls of both in turn: how many differed; and how long each took."""
    times: list[list[float]] = [[], []]
    differing = 0
    expected: list[mx.array] = []
    for turn in range(TURNS + 2):
        for which, call in enumerate(calls):
            started = time.perf_counter()
            made = call()
            times[which].append(1000 * (time.perf_counter() - started))
            expected = expected or [array + 0 for array in made]
            same = all(bool(mx.array_equal(a, b)) for a, b in zip(made, expected, strict=True))
            differing += turn > 0 and not same
    middle = [median(series[2:]) for series in times]
    print(
        f"{label}: {differing} of {2 * TURNS + 2} differ; {middle[0]:.2f} ms joined, "
        f"{middle[1]:.2f} apart{'  WRONG' if differing else ''}",
        flush=True,
    )
    return differing


def check_draft(target: Target, shape: Any) -> int:
    """One draft, TURNS times: the same path, and what it takes."""
    drafter = make_drafter(target, shape)
    width = target.config.hidden_size
    taps = mx.random.normal((1, 64, 5 * width)).astype(mx.bfloat16)
    drafter.observe(TargetRows(0, mx.zeros((64,), dtype=mx.int32), taps, taps[..., :width]))
    mx.eval(drafter.state())
    paths, times = set(), []
    for _ in range(TURNS):
        started = time.perf_counter()
        paths.add(tuple(drafter.draft(mx.array([7]), 7).tolist()))
        times.append(1000 * (time.perf_counter() - started))
    print(f"draft: {len(paths)} paths in {TURNS} turns, {median(times):.2f} ms")
    return len(paths) - 1


if __name__ == "__main__":
    sys.exit(main())
