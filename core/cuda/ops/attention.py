"""Attention of a few rows through the kernels of `attention.cu`: two steps, any cache length.

A row's result does not depend on the other rows of the block, nor on keys that it cannot see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..runtime.launch import THREADS
from ..runtime.steps import Given, Step, run_step
from . import bodies

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
    attention: Any, rope: Any, heads: Sequence[mx.array], position: Given
) -> tuple[mx.array, mx.array, mx.array]:
    """Norms and rotation: queries (1, T, H, S), the first D of S; keys and values (1, T, Hk, D).

    position: int32, its first number that of the first row. Returns (1, H, T, D) and twice
    (1, Hk, T, D).
    """
    queries, keys, values = heads
    _, rows, count, wide = queries.shape
    shapes = (count, keys.shape[2], keys.shape[3], wide)
    inputs: dict[str, Given] = {"q": queries, "k": keys, "v": values, "position": position}
    step = prepare_step("prepare", attention, rope, inputs, rows, shapes)
    q_out, k_out, v_out = run_step(step)
    return q_out, k_out, v_out


def prepare_step(
    name: str,
    attention: Any,
    rope: Any,
    inputs: Mapping[str, Given],
    rows: int,
    shapes: tuple[int, int, int, int],
) -> Step:
    """q_out, k_out, v_out. inputs: q, k, v, position; shapes: query heads, key heads, their size,
    and a query head's with what is packed behind it."""
    heads, kv_heads, dim, wide = shapes
    q_norm, k_norm = attention.q_norm, attention.k_norm
    dtype = mx.bfloat16
    return Step(
        name,
        bodies.prepare(True),
        -(-rows * (heads + 2 * kv_heads) // 8),
        {**inputs, "q_weight": q_norm.weight, "k_weight": k_norm.weight},
        {
            "q_out": ((1, heads, rows, dim), dtype),
            "k_out": ((1, kv_heads, rows, dim), dtype),
            "v_out": ((1, kv_heads, rows, dim), dtype),
        },
        {"In": dtype, "D": dim, "ROPE": rope.dims},
        {
            "M": rows,
            "H": heads,
            "S": wide,
            "HK": kv_heads,
            "q_eps": float(q_norm.eps),
            "k_eps": float(k_norm.eps),
            "log2_base": log2(rope.base),
        },
    )


def prepare_keys(
    attention: Any, rope: Any, keys: mx.array, values: mx.array, position: mx.array
) -> tuple[mx.array, mx.array]:
    """As `prepare`, for rows that ask nothing: keys and values (1, T, Hk, D) -> (1, Hk, T, D)."""
    norm = attention.k_norm
    inputs = {"k": keys, "v": values, "k_weight": norm.weight, "position": position}
    step = prepare_keys_step("prepare_keys", inputs, keys.shape[1:], keys.shape[2], norm.eps, rope)
    k_out, v_out = run_step(step)
    return k_out, v_out


def prepare_keys_step(
    name: str,
    inputs: Mapping[str, Given],
    shape: Sequence[int],
    each: int,
    eps: float,
    rope: Any,
) -> Step:
    """k_out, v_out. inputs: k, v, position, k_weight; shape: (T, Hk, D); each: how many heads a
    row of k_weight (Hk / each, D) is for: those of one layer."""
    rows, heads, dim = shape
    return Step(
        name,
        bodies.prepare(False),
        -(-rows * 2 * heads // 8),
        inputs,
        {part: ((1, heads, rows, dim), mx.bfloat16) for part in ("k_out", "v_out")},
        {"In": mx.bfloat16, "D": dim, "ROPE": rope.dims},
        {
            "M": rows,
            "HK": heads,
            "each": each,
            "k_eps": float(eps),
            "log2_base": log2(rope.base),
        },
    )


@dataclass(frozen=True)
class AttentionRule:
    """scale: of the products of queries and keys. causal: rows see keys up to their own. window:
    context keys that are so many rows back, or more, are not seen; None: all are."""

    scale: float
    causal: bool = True
    window: int | None = None


def attend(
    queries: mx.array,
    context: tuple[mx.array, mx.array],
    span: Given,
    rule: AttentionRule,
    *,
    gate: mx.array | None = None,
    block: tuple[mx.array, mx.array] | None = None,
) -> mx.array:
    """queries (1, H, T, D) over context: whole buffers of keys and values (1, Hk, capacity, D).

    span: (2,) int32, the first buffer row that counts and the rows of context from there on; the
    queries' own T keys stand behind them, or in block: keys and values (1, Hk, T, D). gate
    (1, T, H, S): the last D of S gate the output through their sigmoid. Returns (1, T, H * D).
    Every buffer size compiles nothing new and launches as many blocks as it has tiles, so that a
    traced caller need not know how many rows count.
    """
    shape = AttentionShape.of(queries, context[0], gate, rule)
    inputs: dict[str, Given] = {"q": queries, "k": context[0], "v": context[1], "span": span}
    if block is not None:
        inputs |= {"k_block": block[0], "v_block": block[1]}
    first = attend_step("attend", shape, inputs)
    sums, peaks, weights = run_step(first)
    parts: dict[str, Given] = {"sums": sums, "peaks": peaks, "weights": weights}
    return run_step(combine_step("combine", shape, first, parts, gate))[0]


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention, as `attend` has them. gate_stride: S, None without a gate."""

    heads: int
    kv_heads: int
    dim: int
    rows: int
    capacity: int
    scale: float
    causal: bool = True
    window: int | None = None
    gate_stride: int | None = None

    @classmethod
    def of(
        cls, queries: mx.array, keys: mx.array, gate: mx.array | None, rule: AttentionRule
    ) -> AttentionShape:
        """Of queries (1, H, T, D), a whole buffer of keys (1, Hk, capacity, D), and a gate."""
        _, heads, rows, dim = queries.shape
        stride = None if gate is None else gate.shape[-1]
        _, kv_heads, capacity, _ = keys.shape
        return cls(
            heads, kv_heads, dim, rows, capacity, rule.scale, rule.causal, rule.window, stride
        )


def attend_step(name: str, shape: AttentionShape, inputs: Mapping[str, Given]) -> Step:
    """sums, peaks and weights of every tile. inputs: q, k, v, span, and k_block, v_block where the
    block's own keys are apart."""
    apart = "k_block" in inputs
    tiles = -(-(shape.capacity + (shape.rows if apart else 0)) // TILE)
    queries_a_head = shape.heads // shape.kv_heads * shape.rows
    padded = next(size for size in (8, 16, 32, MAX_QUERIES) if size >= queries_a_head)
    sums = (shape.kv_heads, tiles, padded)
    return Step(
        name,
        bodies.attend(apart),
        shape.kv_heads * tiles,
        inputs,
        {
            "sums": ((*sums, shape.dim), mx.float32),
            "peaks": (sums, mx.float32),
            "weights": (sums, mx.float32),
        },
        {"In": mx.bfloat16, "D": shape.dim, "R": padded, "CAUSAL": int(shape.causal)},
        {
            "HK": shape.kv_heads,
            "capacity": shape.capacity,
            "H": shape.heads,
            "M": shape.rows,
            "tiles": tiles,
            "scale": shape.scale,
            "window": shape.window or 0,
        },
    )


def combine_step(
    name: str, shape: AttentionShape, attended: Step, parts: Mapping[str, Given], gate: Given | None
) -> Step:
    """out (1, T, H * D). attended: the step that made parts: sums, peaks, weights."""
    return Step(
        name,
        bodies.combine(gate is not None),
        -(-shape.rows * shape.heads // (THREADS // shape.dim)),
        {**parts, **({} if gate is None else {"gate": gate})},
        {"out": ((1, shape.rows, shape.heads * shape.dim), mx.bfloat16)},
        {"In": mx.bfloat16, "D": shape.dim},
        {
            "HK": shape.kv_heads,
            "tiles": attended.scalars["tiles"],
            "R": attended.outputs["peaks"][0][2],
            "M": shape.rows,
            "H": shape.heads,
            "stride": shape.gate_stride or shape.dim,
        },
    )
