"""A drafter's layer as steps of a launch, its own or that of a whole draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ....core.cuda.ops.attention import (
    AttentionShape,
    attend_step,
    combine_step,
    head_counts,
    prepare_step,
)
from ....core.cuda.ops.layers import HEADS, Chain
from ....core.cuda.ops.projections import (
    Feed,
    fit_together,
    fits_linear,
    fits_norm,
    fits_pair,
    gated_step,
    linear_step,
    several_step,
)
from ....core.cuda.runtime.steps import UNIT_BYTES, Given, Packed, Step
from .conv import after_step, before_step, fits_conv


@dataclass(frozen=True)
class LayerContext:
    """What a layer's block attends to, beside itself.

    keys, values: whole buffers (1, heads of several layers, capacity, D), of which those of this
    layer begin at head `first`; span: int32, the buffer's first row that counts and how many from
    there on; position: int32, of the block's first row.
    """

    keys: mx.array
    values: mx.array
    first: int
    span: Given
    position: Given

    def places(self) -> tuple[Given, Given]:
        """This layer's keys and values."""
        _, _, capacity, dim = self.keys.shape
        at = self.first * capacity * dim * self.keys.itemsize // UNIT_BYTES
        return Packed(self.keys, self.keys, at), Packed(self.values, self.values, at)

    def arrays(self, kv_heads: int) -> tuple[mx.array, mx.array]:
        """The same as arrays (1, kv heads, capacity, D)."""
        heads = slice(self.first, self.first + kv_heads)
        return self.keys[:, heads], self.values[:, heads]


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


def add_layer(chain: Chain, layer: Any, rope: Any, context: LayerContext) -> None:
    """A layer over the float32 residual."""
    chain.begin()
    attention, mlp = layer.self_attn, layer.mlp
    conv = layer.attention_conv if "attention_conv" in layer else None
    mlp_conv = layer.mlp_conv if "mlp_conv" in layer else None
    rows = _open(chain, "open", conv, layer.input_layernorm)
    mixed = _attention(chain, attention, rope, rows, context)
    _end(chain, "shut", attention.o_proj, conv, mixed, f"{chain.name('open')}.later")
    rows = _open(chain, "mlp", mlp_conv, layer.post_attention_layernorm)
    up = chain.name("up")
    chain.add([gated_step(up, mlp.gate_proj, mlp.up_proj, rows)], chain.hidden)
    gated = Feed("", chain.rows, mlp.up_proj.weight.shape[0], {"x": f"{up}.out"})
    _end(chain, "down", mlp.down_proj, mlp_conv, gated, f"{chain.name('mlp')}.later")


def _open(chain: Chain, name: str, conv: Any, norm: Any) -> Feed:
    """The rows that a branch is fed: normed, and convolved where the drafter does."""
    rows = chain.normed(norm)
    if conv is None:
        return rows
    name = chain.name(name)
    chain.add([before_step(name, conv, rows)], chain.hidden)
    return Feed("", chain.rows, chain.width, {"x": f"{name}.mixed"})


def _end(chain: Chain, name: str, module: Any, conv: Any, rows: Feed, deltas: Given) -> None:
    """The projection that ends a branch, its convolution, and the residual."""
    name = chain.name(name)
    if conv is None:
        step: Step = linear_step(name, module, rows, chain.hidden, mx.float32)
    else:
        step = after_step(name, module, conv, rows, deltas, chain.hidden)
    chain.add([step], f"{name}.out")


def _attention(chain: Chain, attention: Any, rope: Any, rows: Feed, context: LayerContext) -> Feed:
    """What goes into the output projection."""
    heads, kv_heads = head_counts(attention)
    dim = attention.head_dim
    modules = [getattr(attention, name) for name in HEADS]
    first, second, third, fourth = map(chain.name, ("in", "ready", "look", "mix"))
    project = several_step(first, modules, rows)
    given: dict[str, Given] = {part: f"{first}.out_{i}" for i, part in enumerate("qkv")}
    given["position"] = context.position
    sizes = (heads, kv_heads, dim, dim)
    ready = prepare_step(second, attention, rope, given, rows.count, sizes)
    shape = AttentionShape(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        rows=rows.count,
        capacity=context.keys.shape[2],
        scale=dim**-0.5,
        causal=attention.causal,
        window=attention.window,
    )
    keys, values = context.places()
    made = {part: f"{second}.{part}_out" for part in "qkv"}
    held: dict[str, Given] = {"q": made["q"], "k": keys, "v": values, "span": context.span}
    held |= {"k_block": made["k"], "v_block": made["v"]}
    look = attend_step(third, shape, held)
    parts: dict[str, Given] = {part: f"{third}.{part}" for part in look.outputs}
    mix = combine_step(fourth, shape, look, parts, None)
    chain.add([project, ready, look, mix], chain.hidden)
    return Feed("", rows.count, heads * dim, {"x": f"{fourth}.out"})
