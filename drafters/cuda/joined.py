"""A drafter's layers as steps of one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...core.cuda.attention import Attention, attend_step, combine_step, head_counts, prepare_step
from ...core.cuda.joined import HEADS, Chain
from ...core.cuda.projections import (
    Feed,
    Given,
    fit_together,
    fits_linear,
    fits_norm,
    gated_step,
    linear_step,
    several_step,
)
from ...core.cuda.steps import Step
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


def add_layer(
    chain: Chain,
    name: str,
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
    rows = _open(chain, f"{name}open", conv, layer.input_layernorm)
    mixed, steps = _attention(name, attention, rope, rows, position, span, context)
    end = _end(chain, f"{name}shut", attention.o_proj, conv, mixed, f"{name}open.later")
    chain.add([*steps, end], f"{name}shut.out")
    rows = _open(chain, f"{name}mlp", mlp_conv, layer.post_attention_layernorm)
    up = gated_step(f"{name}up", mlp.gate_proj, mlp.up_proj, rows)
    gated = Feed("", chain.rows, mlp.up_proj.weight.shape[0], {"x": f"{name}up.out"})
    down = _end(chain, f"{name}down", mlp.down_proj, mlp_conv, gated, f"{name}mlp.later")
    chain.add([up, down], f"{name}down.out")


def _open(chain: Chain, name: str, conv: Any, norm: Any) -> Feed:
    """The rows that a branch is fed: normed, and convolved where the drafter does."""
    rows = chain.normed(norm)
    if conv is None:
        return rows
    chain.add([before_step(name, conv, rows)], chain.hidden)
    return Feed("", chain.rows, chain.width, {"x": f"{name}.mixed"})


def _end(chain: Chain, name: str, module: Any, conv: Any, rows: Feed, deltas: str) -> Step:
    """The projection that ends a branch, its convolution, and the residual."""
    if conv is None:
        return linear_step(name, module, rows, chain.hidden, mx.float32)
    return after_step(name, module, conv, rows, deltas, chain.hidden)


def _attention(
    name: str,
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
    project = several_step(f"{name}in", [getattr(attention, name) for name in HEADS], rows)
    given: dict[str, Given] = {part: f"{name}in.out_{i}" for i, part in enumerate("qkv")}
    given["position"] = position
    ready = prepare_step(
        f"{name}ready", attention, rope, given, rows.count, (heads, kv_heads, dim, dim)
    )
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
    held |= {"q": f"{ready.name}.q_out"}
    held |= {"k_block": f"{ready.name}.k_out", "v_block": f"{ready.name}.v_out"}
    look = attend_step(f"{name}look", shape, held)
    parts: dict[str, Given] = {part: f"{look.name}.{part}" for part in look.outputs}
    mix = combine_step(f"{name}mix", shape, look, parts, None)
    feed = Feed("", rows.count, heads * dim, {"x": f"{name}mix.out"})
    return feed, [project, ready, look, mix]
