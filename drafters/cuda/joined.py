"""A drafter's layer in three launches: up to the block's own keys, its attention, its MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...core.cuda.attention import Attention, attend_step, combine_step, head_counts, prepare_step
from ...core.cuda.joined import HEADS, Chain
from ...core.cuda.projections import (
    Feed,
    fit_together,
    fits_linear,
    fits_norm,
    fits_pair,
    gated_step,
    linear_step,
    several_step,
)
from ...core.cuda.steps import Given, Step
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
        and fits_pair(mlp.gate_proj, mlp.up_proj, rows)
        and all(fits_linear(module, rows) for module in (attention.o_proj, mlp.down_proj))
        and all(fits_conv(conv, rows) for conv in convs)
    )


def add_layer(
    chain: Chain,
    layer: Any,
    rope: Any,
    position: mx.array,
    span: mx.array,
    context: Sequence[mx.array],
) -> None:
    """A layer over the float32 residual. span and context: as `attend` has them, the block's own
    keys apart."""
    attention, mlp = layer.self_attn, layer.mlp
    conv = layer.attention_conv if "attention_conv" in layer else None
    mlp_conv = layer.mlp_conv if "mlp_conv" in layer else None
    rows = _open(chain, "open", conv, layer.input_layernorm)
    mixed = _attention(chain, attention, rope, rows, position, span, context)
    deltas = chain.found("open.later") if conv is not None else ""
    end = _end(chain, "shut", attention.o_proj, conv, mixed, deltas)
    chain.add([end], "shut.out")
    chain.launch()
    rows = _open(chain, "mlp", mlp_conv, layer.post_attention_layernorm)
    up = gated_step("up", mlp.gate_proj, mlp.up_proj, rows)
    gated = Feed("", chain.rows, mlp.up_proj.weight.shape[0], {"x": "up.out"})
    down = _end(chain, "down", mlp.down_proj, mlp_conv, gated, "mlp.later")
    chain.add([up, down], "down.out")
    chain.launch()


def _open(chain: Chain, name: str, conv: Any, norm: Any) -> Feed:
    """The rows that a branch is fed: normed, and convolved where the drafter does."""
    rows = chain.normed(norm)
    if conv is None:
        return rows
    chain.add([before_step(name, conv, rows)], chain.hidden, [f"{name}.later"])
    return Feed("", chain.rows, chain.width, {"x": f"{name}.mixed"})


def _end(chain: Chain, name: str, module: Any, conv: Any, rows: Feed, deltas: Given) -> Step:
    """The projection that ends a branch, its convolution, and the residual."""
    if conv is None:
        return linear_step(name, module, rows, chain.hidden, mx.float32)
    return after_step(name, module, conv, rows, deltas, chain.hidden)


def _attention(
    chain: Chain,
    attention: Any,
    rope: Any,
    rows: Feed,
    position: mx.array,
    span: mx.array,
    context: Sequence[mx.array],
) -> Feed:
    """What goes into the output projection: its steps wait in the chain, those before them, up to
    the block's own keys, are launched."""
    heads, kv_heads = head_counts(attention)
    dim = attention.head_dim
    project = several_step("in", [getattr(attention, name) for name in HEADS], rows)
    given: dict[str, Given] = {part: f"in.out_{i}" for i, part in enumerate("qkv")}
    given["position"] = position
    ready = prepare_step("ready", attention, rope, given, rows.count, (heads, kv_heads, dim, dim))
    chain.add([project, ready], chain.hidden, [f"ready.{part}_out" for part in "qkv"])
    chain.launch()
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
    made = {part: chain.found(f"ready.{part}_out") for part in "qkv"}
    held |= {"q": made["q"], "k_block": made["k"], "v_block": made["v"]}
    look = attend_step("look", shape, held)
    parts: dict[str, Given] = {part: f"{look.name}.{part}" for part in look.outputs}
    mix = combine_step("mix", shape, look, parts, None)
    chain.add([look, mix], chain.hidden)
    return Feed("", rows.count, heads * dim, {"x": "mix.out"})
