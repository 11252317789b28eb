"""Where a pass spends its time: single operations, then whole forwards, host and device.

python examples/gpu_bench/profile_pass.py --precision bf16 --context 64 > profile.txt
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx
from models import bind, make_drafter, make_model
from setting import bookmark, filled_cache, parse, prompt_ids, stock_copy

from dflash_suite.core.cuda.ops.fused_ops import CudaKernels, cuda_in_use
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from dflash_suite.core.decode.choose import greedy
from dflash_suite.core.decode.drafter import TargetRows

COPIES = 20


def main() -> None:
    """One table to stdout."""
    given = parse(__doc__ or "")
    model = make_model(given.shape, given.precision)
    layers = model.layers
    attention = layers[3].self_attn
    print(f"{given.shape} {given.precision}: milliseconds a call, {COPIES} calls in one graph")
    kinds: dict[str, OpKernels] = {"mlx": OpKernels()}
    if cuda_in_use():
        kinds["fused"] = CudaKernels()
    for name, pick in matmuls(layers).items():
        for label, kernels in kinds.items():
            show(f"{name} {label}", [matmul_ms(kernels, pick, rows) for rows in (1, 4, 8, 16)])
    vocab = model.language_model.args.vocab_size
    logits = mx.random.normal((1, 8, vocab)).astype(mx.bfloat16)
    show("greedy 8 rows", [loop_ms(lambda i: greedy((logits + i)[0]))])
    show("argmax 8 rows", [loop_ms(lambda i: mx.argmax(logits + i, axis=-1))])
    show("argpartition 8 rows", [loop_ms(lambda i: mx.argpartition(logits + i, -16, axis=-1), 3)])
    show("add 8 rows", [loop_ms(lambda i: logits + i)])
    heads, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    for context in given.contexts:
        keys = mx.random.normal((2, 1, kv_heads, context, attention.head_dim)).astype(mx.bfloat16)
        times = []
        for rows in (1, 4, 8, 16):
            queries = mx.random.normal((1, heads, rows, attention.head_dim)).astype(mx.bfloat16)
            mask = None if rows == 1 else "causal"
            times.append(loop_ms(lambda i, q=queries, k=keys, m=mask: attend(q + i, k, m)))  # type: ignore[misc]
        show(f"attention {context} keys", times)
    for context in given.contexts:
        forwards(given, model, context)


def attend(queries: mx.array, keys: mx.array, mask: str | None) -> mx.array:
    """MLX's own attention of some rows over one cache."""
    return mx.fast.scaled_dot_product_attention(
        queries, keys[0], keys[1], scale=queries.shape[-1] ** -0.5, mask=mask
    )


def matmuls(layers: Any) -> dict[str, Callable[[int], Any]]:
    """Layers of the same kind in turn, so that no weight is found in the cache."""
    linear = [layer for layer in layers if layer.is_linear]
    picks: dict[str, Callable[[int], Any]] = {
        "in_proj_qkv": lambda i: linear[i % len(linear)].linear_attn.in_proj_qkv,
        "in_proj_a": lambda i: linear[i % len(linear)].linear_attn.in_proj_a,
        "out_proj": lambda i: linear[i % len(linear)].linear_attn.out_proj,
    }
    if hasattr(layers[0].mlp, "down_proj"):
        picks["up_proj"] = lambda i: layers[i % len(layers)].mlp.up_proj
        picks["down_proj"] = lambda i: layers[i % len(layers)].mlp.down_proj
    return picks


def matmul_ms(kernels: OpKernels, pick: Callable[[int], Any], rows: int) -> float:
    """Milliseconds of one projection among COPIES, traced once so that the host keeps up."""
    first = pick(0)
    inputs = first.weight.shape[1]
    if hasattr(first, "scales"):
        inputs = first.scales.shape[1] * first.group_size
    x = mx.random.normal((1, rows, inputs)).astype(mx.bfloat16)
    traced: Any = mx.compile if cuda_in_use() else (lambda function: function)
    run = traced(lambda x: [kernels.linear(pick(i), x) for i in range(COPIES)])
    times = []
    for _ in range(9):
        mx.synchronize()
        started = time.perf_counter()
        mx.eval(run(x))
        times.append((time.perf_counter() - started) / COPIES)
    return 1000 * median(times[3:])


def loop_ms(call: Callable[[int], mx.array], copies: int = COPIES) -> float:
    """Median milliseconds of one call among `copies` in one graph."""
    times = []
    for _ in range(7):
        mx.synchronize()
        started = time.perf_counter()
        mx.eval([call(i) for i in range(copies)])
        times.append((time.perf_counter() - started) / copies)
    return 1000 * median(times[2:])


def forwards(given: Any, model: Any, context: int) -> None:
    """Whole passes: until the host has queued everything, and until the ids are read."""
    target = bind(model, given.shape)
    drafter = make_drafter(target, given.shape)
    cache = filled_cache(target, context)
    stock = stock_copy(model, cache)
    undo, undo_stock = bookmark(cache), bookmark(stock)
    for rows in (1, 2, 4, 8, 16):
        ids = prompt_ids(rows, target.config.vocab_size)
        passes = {
            "mlx-lm": (lambda ids=ids: greedy(model(ids, cache=stock)[0]), undo_stock),
            "ours": (
                lambda ids=ids: greedy(
                    target.logits_from_hidden(
                        target.verify_rows(ids, cache, drafter.tap_ids).hidden
                    )[0]
                ),
                undo,
            ),
            "ours, body": (
                lambda ids=ids: target.verify_rows(ids, cache, drafter.tap_ids).hidden,
                undo,
            ),
        }
        for name, (call, restore) in passes.items():
            show(
                f"{context} context, {rows} rows {name}: host, whole", host_and_whole(call, restore)
            )
    taps = mx.random.normal((1, 8, 5 * target.config.hidden_size)).astype(mx.bfloat16)
    rows8 = TargetRows(0, mx.zeros((8,), dtype=mx.int32), taps, taps)
    drafter.observe(rows8)
    mx.eval(drafter.state())

    def observe() -> list[mx.array]:
        drafter.reset(0)
        drafter.observe(rows8)
        held: list[mx.array] = drafter.state()
        return held

    anchor = mx.array([7])
    show("draft of 7: host, whole", host_and_whole(lambda: drafter.draft(anchor, 7), undo))
    hidden = drafter.block_hidden(anchor, 7)
    mx.eval(hidden)
    show("draft, hidden only", host_and_whole(lambda: drafter.block_hidden(anchor, 7), undo))
    show("draft, logits only", host_and_whole(lambda: drafter.block_logits(hidden), undo))
    show("observe 8: host, whole", host_and_whole(observe, undo))


def host_and_whole(call: Callable[[], Any], restore: Callable[[], None]) -> list[float]:
    """[ms until everything is queued, ms until it is done], medians."""
    host, whole = [], []
    for _ in range(13):
        mx.synchronize()
        started = time.perf_counter()
        out = call()
        queue: Any = mx.async_eval
        queue(out)
        host.append(time.perf_counter() - started)
        mx.eval(out)
        whole.append(time.perf_counter() - started)
        restore()
    return [1000 * median(host[3:]), 1000 * median(whole[3:])]


def show(name: str, values: list[float]) -> None:
    """One line of the table."""
    print(f"{name:46}" + "".join(f"{value:10.4f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
