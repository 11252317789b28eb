"""Figures h and i: a plain queued token over the floor of its weights, the host's time, and rows.

python examples/gpu_bench/token_floor.py --shape 27b --precision q4

The floor is the bytes of the weights that a token reads, over the speed at which this GPU copies
in the same run. The host's time is that of queueing a pass, with the device left to itself.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import mlx.core as mx
from cases import measure_contexts
from mlx.utils import tree_flatten
from models import bind
from results import Row, ratios, summarize
from setting import Arguments, bookmark, filled_cache, prompt_ids, verify_call
from timing import interleave

from dflash_suite.core.decode.lookahead import Lookahead

TOKENS, RUNS = 48, 7
COPY_BYTES, COPIES = 1 << 31, 10
GOALS = {"27b-q4": 2.0, "9b-q4": 2.5, "27b-bf16": 1.25}
ROW_GOALS = {8: 1.15, 16: 1.30}


def main() -> None:
    """One model, every context asked for (64 tokens, where none is)."""
    measure_contexts(__doc__, "h-host", measure)


def measure(given: Arguments, model: Any, context: int, case: str) -> list[Row]:
    """Rows h, h-host and i of one context, and the terms that they are made of."""
    target = bind(model, given.shape)
    cache = filled_cache(target, context)
    restore = bookmark(cache)
    floor_ms = weight_bytes(model) / copy_speed() * 1e3
    tokens, hosts = [], []
    for turn in range(RUNS + 1):
        token_ms, host_ms = queued_token_ms(target, cache)
        restore()
        if turn:  # the first one compiles
            tokens.append(token_ms)
            hosts.append(host_ms)
    calls = {str(rows): (verify_call(target, cache, rows, ()), restore) for rows in (1, 8, 16)}
    times = interleave(calls, given.repeats)
    kind = f"{given.shape}-{given.precision}"
    made = [
        summarize(f"h-{case}", [one / floor_ms for one in tokens], GOALS.get(kind)),
        summarize(f"x-token-ms-{case}", tokens),
        summarize(f"x-floor-ms-{case}", [floor_ms]),
        summarize(f"x-host-ms-{case}", hosts),
    ]
    for rows in (8, 16):
        over = ratios(times[str(rows)], times["1"])
        goal = ROW_GOALS[rows] if kind == "27b-q4" else None
        made.append(summarize(f"i-{rows}-{case}", over, goal))
    for rows in (1, 8, 16):
        made.append(summarize(f"x-rows-{rows}-ms-{case}", [t * 1e3 for t in times[str(rows)]]))
    return [*made, summarize(f"h-host-{case}", ratios(hosts, tokens), 0.8)]


def queued_token_ms(target: Any, cache: Any) -> tuple[float, float]:
    """(ms a token, ms of them that the host takes to queue it), medians over TOKENS tokens that
    are decoded as the loop decodes plainly: the next pass is queued before an id is read."""
    ahead, anchor = Lookahead(target, cache), prompt_ids(1, target.config.vocab_size)[0]
    token_ms, host_ms = [], []
    for _ in range(TOKENS):
        started = time.perf_counter()
        step = ahead.step(anchor, more=True)
        queued = time.perf_counter()
        anchor = mx.array(step.fetch()[0])
        host_ms.append((queued - started) * 1e3)
        token_ms.append((time.perf_counter() - started) * 1e3)
    ahead.drop()
    return median(token_ms), median(host_ms)


def weight_bytes(model: Any) -> int:
    """Bytes that a token reads: every weight but the embedding, of which it reads a row."""
    flat: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for path, array in flat if "embed_tokens" not in path)


def copy_speed() -> float:
    """Bytes a second that this GPU reads and writes together while it copies."""
    source = mx.zeros((COPY_BYTES // 4,), dtype=mx.float32)
    mx.eval(source)
    speeds = []
    for _ in range(COPIES):
        mx.synchronize()
        started = time.perf_counter()
        mx.eval(source + 1.0)
        mx.synchronize()
        speeds.append(2 * COPY_BYTES / (time.perf_counter() - started))
    return median(speeds)


if __name__ == "__main__":
    main()
