"""Figures h and i: a plain token, queued before the one before it is read, over the time that the
weights take at the speed of a copy; and passes of 8 and 16 rows over one row.

python examples/gpu_bench/token_cost.py --shape 27b --precision q4 --context 64
"""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx
from cases import measure_contexts
from mlx.utils import tree_flatten
from models import bind, draft_config
from results import Row, ratios, summarize
from setting import Arguments, bookmark, filled_cache, prompt_ids, verify_call
from timing import Prepared, interleave

from dflash_suite.core.decode.choose import greedy
from dflash_suite.core.device import start_eval

TOKENS = 24
COPIED = 1 << 30
"""Words of the copy that the floor is taken from."""
GOALS = {"27b-q4": 2.0, "9b-q4": 2.5, "27b-bf16": 1.25}


def main() -> None:
    """One model, every context asked for."""
    measure_contexts(__doc__, "i-16", measure)


def measure(given: Arguments, model: Any, context: int, case: str) -> list[Row]:
    """Runs of queued tokens and copies in turn, then passes of three widths in turn."""
    target = bind(model, given.shape)
    cache = filled_cache(target, context)
    undo = bookmark(cache)
    words = mx.zeros((COPIED,), dtype=mx.uint32)
    mx.eval(words)
    floors, tokens, hosts = [], [], []
    for turn in range(given.repeats // 3 + 2):
        floor = weight_bytes(model) / copy_speed(words)
        token, host = queued(target, cache)
        undo()
        if turn >= 2:
            floors.append(floor)
            tokens.append(token)
            hosts.append(host)
    taps = draft_config(given.shape).target_layer_ids
    calls: dict[str, Prepared] = {
        f"{width}": (verify_call(target, cache, width, taps if width > 1 else ()), undo)
        for width in (1, 8, 16)
    }
    times = interleave(calls, given.repeats)
    goal = GOALS.get(case.rsplit("-", 1)[0])
    return [
        summarize(f"h-{case}", ratios(tokens, floors), goal),
        summarize(f"h-host-{case}", ratios(hosts, tokens), 0.8),
        summarize(f"x-queued-token-ms-{case}", [1000 * value for value in tokens]),
        summarize(f"x-queued-host-ms-{case}", [1000 * value for value in hosts]),
        summarize(f"x-floor-ms-{case}", [1000 * value for value in floors]),
        *(summarize(f"x-pass-{w}-ms-{case}", [1000 * v for v in times[w]]) for w in calls),
        summarize(f"i-8-{case}", ratios(times["8"], times["1"]), 1.15),
        summarize(f"i-16-{case}", ratios(times["16"], times["1"]), 1.30),
    ]


def queued(target: Any, cache: Any) -> tuple[float, float]:
    """(seconds a token, seconds of the host to queue one), a pass ahead of what is read."""
    ids = prompt_ids(1, target.config.vocab_size, seed=5)
    mx.eval(ids)
    hosts = []
    before = None
    started = time.perf_counter()
    for _ in range(TOKENS):
        began = time.perf_counter()
        result = target.verify_rows(ids, cache, ())
        ids = greedy(target.logits_from_hidden(result.hidden)[0])[None]
        start_eval([ids])
        hosts.append(time.perf_counter() - began)
        if before is not None:
            before.tolist()
        before = ids
    assert before is not None
    before.tolist()
    return (time.perf_counter() - started) / TOKENS, sorted(hosts)[len(hosts) // 2]


def copy_speed(words: mx.array) -> float:
    """Bytes a second of reading and writing all of them."""
    mx.synchronize()
    started = time.perf_counter()
    mx.eval(words + 1)
    return 2 * words.nbytes / (time.perf_counter() - started)


def weight_bytes(model: Any) -> int:
    """What a pass of one row reads: all but the embedding, of which it reads a row."""
    held: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for path, array in held if "embed_tokens" not in path)


if __name__ == "__main__":
    main()
