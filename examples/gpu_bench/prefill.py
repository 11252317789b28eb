"""Figure g: prefill speed over mlx-lm's, same chunks, tokens a second.

python examples/gpu_bench/prefill.py --precision bf16 --context 4096
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import mlx.core as mx
from cases import measure_contexts
from mlx_lm.models.cache import make_prompt_cache
from models import bind
from results import Row, ratios, summarize
from setting import Arguments, prompt_ids

from dflash_suite.core.cache.kinds import cache_arrays

STEP, RUNS = 2048, 1


def main() -> None:
    """One model, every context asked for."""
    measure_contexts(__doc__, "x-prefill-tokens-sec", measure)


def measure(given: Arguments, model: Any, context: int, case: str) -> list[Row]:
    """A prompt of `context` tokens through both, after one that is thrown away."""
    target = bind(model, given.shape)
    ids = prompt_ids(context, target.config.vocab_size)
    ours, stock = [], []
    for turn in range(RUNS + 1):
        cache, other = target.make_cache(), make_prompt_cache(model)
        ours.append(seconds(partial(target.forward_with_taps, cache=cache), ids, cache))
        stock.append(seconds(partial(model, cache=other), ids, other))
        if turn == 0:
            ours, stock = [], []
    return [
        summarize(f"g-{case}", ratios(stock, ours), 1.0, "higher"),
        summarize(f"x-prefill-tokens-sec-{case}", [context / s for s in ours], better="higher"),
        summarize(
            f"x-mlx-lm-prefill-tokens-sec-{case}", [context / s for s in stock], better="higher"
        ),
    ]


def seconds(feed: Any, ids: mx.array, cache: Any) -> float:
    """Time until the caches hold the whole prompt."""
    mx.synchronize()
    started = time.perf_counter()
    for start in range(0, ids.shape[1], STEP):
        feed(ids[:, start : start + STEP])
        mx.eval(cache_arrays(cache))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
