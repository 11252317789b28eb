"""Attention of a few rows through the kernels of `attention.cu`: two launches, any cache length.

A row's result does not depend on the other rows of the block, nor on keys that it cannot see.
"""

from __future__ import annotations

import struct
from functools import cache
from math import log2
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from . import sources

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
    attention: Any, rope: Any, queries: mx.array, keys: mx.array, position: mx.array
) -> tuple[mx.array, mx.array]:
    """Norms and rotation: queries (1, T, H, S), the first D of S; keys (1, T, Hk, D).

    position: (1,) int32, of the first row. Returns (1, H, T, D) and (1, Hk, T, D).
    """
    _, rows, heads, _ = queries.shape
    kv_heads, dim = keys.shape[2:]
    q_norm, k_norm = attention.q_norm, attention.k_norm
    q_out, k_out = sources.prepare_kernel()(
        inputs=[
            queries[0],
            keys[0],
            q_norm.weight,
            k_norm.weight,
            position,
            mx.array([q_norm.eps, k_norm.eps, log2(rope.base)], dtype=mx.float32),
        ],
        template=[("In", queries.dtype), ("D", dim), ("ROPE", rope.dims)],
        grid=(-(-rows * (heads + kv_heads) // 8) * sources.THREADS, 1, 1),
        threadgroup=(sources.THREADS, 1, 1),
        output_shapes=[(1, heads, rows, dim), (1, kv_heads, rows, dim)],
        output_dtypes=[queries.dtype, queries.dtype],
    )
    return q_out, k_out


@cache
def _facts(scale: float, causal: bool, window: int, rows: int, heads: int, stride: int) -> mx.array:
    """What the kernels are told at run time: as a constant it would compile them anew."""
    bits: int = struct.unpack("i", struct.pack("f", scale))[0]
    return mx.array([bits, int(causal), window, rows, heads, stride], dtype=mx.int32)


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    *,
    causal: bool = True,
    window: int | None = None,
    gate: mx.array | None = None,
) -> mx.array:
    """queries (1, H, T, D), the last T of keys and values (1, Hk, n, D) -> (1, T, H * D).

    Causal rows see keys up to their own; a window cuts context keys that are `window` or more
    back. gate (1, T, H, S): the last D of S gate the output through their sigmoid.
    """
    _, heads, rows, dim = queries.shape
    kv_heads, count = keys.shape[1:3]
    tiles = -(-count // TILE)
    queries_a_head = heads // kv_heads * rows
    stride = dim if gate is None else gate.shape[-1]
    facts = _facts(scale, causal, window or 0, rows, heads, stride)
    padded = next(size for size in (8, 16, 32, MAX_QUERIES) if size >= queries_a_head)
    sums, peaks, weights = sources.attention_kernel()(
        inputs=[queries, keys, values, facts],
        template=[
            ("In", queries.dtype),
            ("D", dim),
            ("R", padded),
        ],
        grid=(kv_heads * tiles * sources.THREADS, 1, 1),
        threadgroup=(sources.THREADS, 1, 1),
        output_shapes=[
            (kv_heads, tiles, padded, dim),
            (kv_heads, tiles, padded),
            (kv_heads, tiles, padded),
        ],
        output_dtypes=[mx.float32] * 3,
    )
    (out,) = sources.combine_kernel(gate is not None)(
        inputs=[sums, peaks, weights, facts, *([] if gate is None else [gate])],
        template=[("In", queries.dtype), ("D", dim)],
        grid=(-(-rows * heads // (sources.THREADS // dim)) * sources.THREADS, 1, 1),
        threadgroup=(sources.THREADS, 1, 1),
        output_shapes=[(1, rows, heads * dim)],
        output_dtypes=[queries.dtype],
    )
    result: mx.array = out
    return result
