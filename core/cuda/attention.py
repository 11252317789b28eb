"""Attention of a few rows through the kernels of `attention.cu`: two launches, any cache length.

A row's result does not depend on the other rows of the block, nor on keys that it cannot see.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from . import sources
from .launch import THREADS

MAX_QUERIES = 64
"""Query rows of one key head that a block takes: rows times query heads a key head."""
HEAD_DIMS = (64, 128, 256)
TILE = 128


def fits_heads(attention: Any, rope: Any, rows: int) -> bool:
    """True for a plain rotary embedding and the head sizes that the kernels are written for.

    attention: has q_norm and k_norm, and heads under mlx-lm's names or the drafter's.
    """
    heads, kv_heads = head_counts(attention)
    if type(rope) is not nn.RoPE or rope.traditional or rope.scale != 1.0:
        return False
    half = rope.dims // 2
    rotates = half % 32 == 0 or half in (1, 2, 4, 8, 16)
    groups = heads // kv_heads
    dim = attention.q_norm.weight.shape[0]
    dtypes = {attention.q_norm.weight.dtype, attention.k_norm.weight.dtype}
    return rotates and dim in HEAD_DIMS and groups * rows <= MAX_QUERIES and dtypes == {mx.bfloat16}


def head_counts(attention: Any) -> tuple[int, int]:
    """(query heads, key heads)."""
    if hasattr(attention, "num_attention_heads"):
        return attention.num_attention_heads, attention.num_key_value_heads
    return attention.heads, attention.kv_heads


def prepare(
    attention: Any, rope: Any, heads: Sequence[mx.array], position: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Norms and rotation: queries (1, T, H, S), the first D of S; keys and values (1, T, Hk, D).

    position: int32, its first number that of the first row. Returns (1, H, T, D) and twice
    (1, Hk, T, D).
    """
    queries, keys, values = heads
    _, rows, count, _ = queries.shape
    kv_heads, dim = keys.shape[2:]
    q_norm, k_norm = attention.q_norm, attention.k_norm
    q_out, k_out, v_out = sources.prepare_kernel()(
        inputs=[queries, keys, values, q_norm.weight, k_norm.weight, position],
        template=[("In", queries.dtype), ("D", dim), ("ROPE", rope.dims)],
        scalars={
            "q_eps": float(q_norm.eps),
            "k_eps": float(k_norm.eps),
            "log2_base": log2(rope.base),
        },
        blocks=-(-rows * (count + 2 * kv_heads) // 8),
        output_shapes=[(1, count, rows, dim), *[(1, kv_heads, rows, dim)] * 2],
        output_dtypes=[queries.dtype] * 3,
    )
    return q_out, k_out, v_out


def prepare_keys(
    attention: Any, rope: Any, keys: mx.array, values: mx.array, position: mx.array
) -> tuple[mx.array, mx.array]:
    """As `prepare`, for rows that ask nothing: keys and values (1, T, Hk, D) -> (1, Hk, T, D)."""
    _, rows, heads, dim = keys.shape
    k_out, v_out = sources.prepare_keys_kernel()(
        inputs=[keys, values, attention.k_norm.weight, position],
        template=[("In", keys.dtype), ("D", dim), ("ROPE", rope.dims)],
        scalars={"k_eps": float(attention.k_norm.eps), "log2_base": log2(rope.base)},
        blocks=-(-rows * 2 * heads // 8),
        output_shapes=[(1, heads, rows, dim)] * 2,
        output_dtypes=[keys.dtype] * 2,
    )
    return k_out, v_out


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    span: mx.array,
    scale: float,
    *,
    causal: bool = True,
    window: int | None = None,
    gate: mx.array | None = None,
    block: tuple[mx.array, mx.array] | None = None,
) -> mx.array:
    """queries (1, H, T, D) over whole buffers of keys and values (1, Hk, capacity, D).

    span: int32, of which the first two: the first buffer row that counts and the rows of context
    from there on; the queries' own T keys stand behind them, or in block: keys and values
    (1, Hk, T, D).
    Causal rows see keys up to their own; a window cuts context keys that are `window` or more
    back. gate (1, T, H, S): the last D of S gate the output through their sigmoid. Returns
    (1, T, H * D). Every buffer size compiles nothing new and launches as many blocks as it has
    tiles, so that a traced caller need not know how many rows count.
    """
    _, heads, rows, dim = queries.shape
    kv_heads, capacity = keys.shape[1:3]
    tiles = -(-(capacity + (0 if block is None else rows)) // TILE)
    queries_a_head = heads // kv_heads * rows
    padded = next(size for size in (8, 16, 32, MAX_QUERIES) if size >= queries_a_head)
    sums, peaks, weights = sources.attention_kernel(block is not None)(
        inputs=[queries, keys, values, span, *(block or ())],
        template=[("In", queries.dtype), ("D", dim), ("R", padded), ("CAUSAL", int(causal))],
        scalars={"tiles": tiles, "scale": scale, "window": window or 0},
        blocks=kv_heads * tiles,
        output_shapes=[
            (kv_heads, tiles, padded, dim),
            (kv_heads, tiles, padded),
            (kv_heads, tiles, padded),
        ],
        output_dtypes=[mx.float32] * 3,
    )
    stride = dim if gate is None else gate.shape[-1]
    (out,) = sources.combine_kernel(gate is not None)(
        inputs=[sums, peaks, weights, *([] if gate is None else [gate])],
        template=[("In", queries.dtype), ("D", dim)],
        scalars={"rows": rows, "heads": heads, "stride": stride},
        blocks=-(-rows * heads // (THREADS // dim)),
        output_shapes=[(1, rows, heads * dim)],
        output_dtypes=[queries.dtype],
    )
    return out
