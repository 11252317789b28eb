"""A layer's steps in one launch: a GDN layer whole; of an attention layer what comes before its
cache, and what comes after. A mixture of experts stays outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .attention import Attention, attend_step, combine_step, fits_heads, prepare_step
from .projections import (
    Feed,
    Given,
    feed_gate_normed,
    feed_normed,
    fit_together,
    fits_gate_norm,
    fits_linear,
    fits_norm,
    gated_step,
    linear_step,
    several_step,
)
from .recurrence import fits_gdn, gdn_step
from .steps import Step, run_steps

SPLIT = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b")
"""A GDN layer's projections in the layout that needs no sorting afterwards."""
HEADS = ("q_proj", "k_proj", "v_proj")


def joins_layer(layer: Any, rows: int, dtype: mx.Dtype) -> bool:
    """True where every step of a layer up to its MLP is a kernel's."""
    if dtype != mx.bfloat16 or not fits_norm(layer.input_layernorm, dtype):
        return False
    if not layer.is_linear:
        attention = layer.self_attn
        modules = [getattr(attention, name) for name in HEADS]
        heads = fits_heads(attention, attention.rope, rows)
        return heads and fit_together(modules, rows) and fits_linear(attention.o_proj, rows)
    gdn = layer.linear_attn
    if not all(hasattr(gdn, name) for name in SPLIT):
        return False
    modules = [getattr(gdn, name) for name in SPLIT]
    norm = fits_gate_norm(gdn.norm, gdn.num_v_heads, gdn.head_v_dim)
    fits = norm and fits_gdn(gdn, dtype) and fit_together(modules, rows)
    return fits and fits_linear(gdn.out_proj, rows)


def joins_mlp(layer: Any, rows: int, dtype: mx.Dtype) -> bool:
    """True for a dense MLP whose projections are a kernel's."""
    mlp = layer.mlp
    if not all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")):
        return False
    same = mlp.gate_proj.weight.shape == mlp.up_proj.weight.shape
    norm = fits_norm(layer.post_attention_layernorm, dtype)
    pair = same and fit_together((mlp.gate_proj, mlp.up_proj), rows)
    return norm and pair and fits_linear(mlp.down_proj, rows)


def run_gdn_layer(
    layer: Any,
    hidden: mx.array,
    window: mx.array,
    state: mx.array,
    every: bool,
    place: mx.array,
    token: mx.array,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """(hidden, windows, states, token): the layer over hidden (1, T, D), as OpKernels.gdn has its
    other arrays; without its MLP where `joins_mlp` says so."""
    gdn, (rows, width) = layer.linear_attn, hidden.shape[1:]
    modules = [getattr(gdn, name) for name in SPLIT]
    feed = feed_normed(hidden, layer.input_layernorm, rows, width)
    held: dict[str, Given] = {"window": window, "state": state, "place": place}
    held |= {"qkv": "in.out_0", "a": "in.out_2", "b": "in.out_3"}
    heads = feed_gate_normed("gdn.y", gdn.norm, "in.out_1", rows, gdn.num_v_heads, gdn.head_v_dim)
    steps = [
        several_step("in", modules, feed, (0, gdn.num_v_heads, 0, 0)),
        gdn_step("gdn", gdn, held, rows, every, hidden.dtype),
        linear_step("out", gdn.out_proj, heads, hidden),
    ]
    hidden, made, token = _finish(layer, steps, hidden, token)
    return hidden, made["gdn.windows"], made["gdn.states"], token


def run_attention_inputs(
    layer: Any, hidden: mx.array, position: mx.array, token: mx.array
) -> tuple[list[mx.array], mx.array]:
    """([queries, keys, values (1, heads, T, D), queries packed with their gates (1, T, H, S)],
    token)."""
    attention, (rows, width) = layer.self_attn, hidden.shape[1:]
    modules = [getattr(attention, name) for name in HEADS]
    count, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    feed = feed_normed(hidden, layer.input_layernorm, rows, width)
    first = several_step("in", modules, feed, (count, kv_heads, kv_heads))
    shapes = (count, *first.outputs["out_1"][0][2:], first.outputs["out_0"][0][3])
    heads: dict[str, Given] = {"q": "in.out_0", "k": "in.out_1", "v": "in.out_2"}
    heads["position"] = position
    ready = prepare_step("ready", attention, attention.rope, heads, rows, shapes)
    made, token = run_steps([first, ready], token)
    names = ("ready.q_out", "ready.k_out", "ready.v_out", "in.out_0")
    return [made[name] for name in names], token


def run_attention_end(
    layer: Any, hidden: mx.array, inputs: Sequence[mx.array], span: mx.array, token: mx.array
) -> tuple[mx.array, mx.array]:
    """(hidden, token). inputs: queries (1, H, T, D), whole buffers of keys and values, and the
    queries packed with their gates; without the MLP where `joins_mlp` says so."""
    queries, keys, values, gate = inputs
    attention = layer.self_attn
    shape = Attention(
        heads=queries.shape[1],
        kv_heads=keys.shape[1],
        dim=queries.shape[3],
        rows=queries.shape[2],
        capacity=keys.shape[2],
        scale=float(attention.scale),
        gate_stride=gate.shape[-1],
    )
    held: dict[str, Given] = {"q": queries, "k": keys, "v": values, "span": span}
    look = attend_step("look", shape, held)
    parts: dict[str, Given] = {name: f"look.{name}" for name in look.outputs}
    mix = combine_step("mix", shape, look, parts, gate)
    mixed = Feed("", shape.rows, shape.heads * shape.dim, {"x": "mix.out"})
    steps = [look, mix, linear_step("out", attention.o_proj, mixed, hidden)]
    hidden, _, token = _finish(layer, steps, hidden, token)
    return hidden, token


def _finish(
    layer: Any, steps: list[Step], hidden: mx.array, token: mx.array
) -> tuple[mx.array, dict[str, mx.array], mx.array]:
    """Run the steps, and those of the MLP where they join: (hidden, what was made, token)."""
    rows, width = hidden.shape[1:]
    mlp, end = layer.mlp, steps[-1].name
    if joins_mlp(layer, rows, hidden.dtype):
        feed = feed_normed(f"{end}.out", layer.post_attention_layernorm, rows, width)
        up = gated_step("up", mlp.gate_proj, mlp.up_proj, feed)
        inner = Feed("", rows, mlp.up_proj.weight.shape[0], {"x": "up.out"})
        steps = [*steps, up, linear_step("down", mlp.down_proj, inner, f"{end}.out")]
        end = "down"
    made, token = run_steps(steps, token)
    return made[f"{end}.out"], made, token
