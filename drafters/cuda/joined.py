"""A drafter's layer in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...core.cuda.attention import Attention, attend_step, combine_step, head_counts, prepare_step
from ...core.cuda.joined import HEADS
from ...core.cuda.projections import (
    Feed,
    Given,
    feed_normed,
    fit_together,
    fits_linear,
    fits_norm,
    gated_step,
    linear_step,
    several_step,
)
from ...core.cuda.steps import Step, run_steps
from .conv import after_step, before_step, fits_conv


def joins_layer(layer: Any, rows: int) -> bool:
    """True where every step of a layer over the float32 residual is a kernel's."""
    attention, mlp = layer.self_attn, layer.mlp
    heads = [getattr(attention, name) for name in HEADS]
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    convs = [getattr(layer, name) for name in ("attention_conv", "mlp_conv") if name in layer]
    return (
        all(fits_norm(norm, mx.float32) for norm in norms)
        and fit_together(heads, rows)
        and fit_together((mlp.gate_proj, mlp.up_proj), rows)
        and all(fits_linear(module, rows) for module in (attention.o_proj, mlp.down_proj))
        and all(fits_conv(conv, rows) for conv in convs)
    )


def run_layer(
    layer: Any,
    rope: Any,
    residual: mx.array,
    position: mx.array,
    span: mx.array,
    context: Sequence[mx.array],
    token: mx.array,
) -> tuple[mx.array, mx.array]:
    """(residual (1, T, D) in float32 after the layer, token). span and context: as `attend` has
    them, the block's own keys apart."""
    rows, width = residual.shape[1:]
    attention, mlp = layer.self_attn, layer.mlp
    convolves = "attention_conv" in layer
    inner = mlp.up_proj.weight.shape[0]
    first = feed_normed(residual, layer.input_layernorm, rows, width)
    steps: list[Step] = []
    if convolves:
        steps.append(before_step("open", layer.attention_conv, first))
        first = Feed("", rows, width, {"x": "open.mixed"})
    mixed, more = _attention(attention, rope, first, position, span, context)
    steps += more
    if convolves:
        conv = layer.attention_conv
        steps.append(after_step("shut", attention.o_proj, conv, mixed, "open.later", residual))
    else:
        steps.append(linear_step("shut", attention.o_proj, mixed, residual, mx.float32))
    second = feed_normed("shut.out", layer.post_attention_layernorm, rows, width)
    if convolves:
        steps.append(before_step("open_mlp", layer.mlp_conv, second))
        second = Feed("", rows, width, {"x": "open_mlp.mixed"})
    steps.append(gated_step("up", mlp.gate_proj, mlp.up_proj, second))
    gated = Feed("", rows, inner, {"x": "up.out"})
    if convolves:
        end = after_step("down", mlp.down_proj, layer.mlp_conv, gated, "open_mlp.later", "shut.out")
    else:
        end = linear_step("down", mlp.down_proj, gated, "shut.out", mx.float32)
    made, token = run_steps([*steps, end], token)
    return made["down.out"], token


def _attention(
    attention: Any,
    rope: Any,
    rows: Feed,
    position: mx.array,
    span: mx.array,
    context: Sequence[mx.array],
) -> tuple[Feed, list[Step]]:
    """(what goes into the output projection, the steps up to there)."""
    heads, kv_heads = head_counts(attention)
    dim = attention.head_dim
    project = several_step("in", [getattr(attention, name) for name in HEADS], rows)
    given: dict[str, Given] = {"q": "in.out_0", "k": "in.out_1", "v": "in.out_2"}
    given["position"] = position
    ready = prepare_step("ready", attention, rope, given, rows.count, (heads, kv_heads, dim, dim))
    shape = Attention(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        rows=rows.count,
        capacity=context[0].shape[2],
        scale=dim**-0.5,
        causal=attention.causal,
        window=attention.window,
    )
    held: dict[str, Given] = {"k": context[0], "v": context[1], "span": span}
    held |= {"q": "ready.q_out", "k_block": "ready.k_out", "v_block": "ready.v_out"}
    look = attend_step("look", shape, held)
    parts: dict[str, Given] = {name: f"look.{name}" for name in look.outputs}
    mix = combine_step("mix", shape, look, parts, None)
    feed = Feed("", rows.count, heads * dim, {"x": "mix.out"})
    return feed, [project, ready, look, mix]
