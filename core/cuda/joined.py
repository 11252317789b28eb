"""Whole layers as steps of few launches: a GDN layer in one, an attention layer in three, between
which its cache comes. A layer with a mixture of experts is not joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .attention import Attention, attend, attend_step, combine_step, fits_heads, prepare_step
from .projections import (
    Feed,
    feed_gate_normed,
    feed_normed,
    fit_together,
    fits_gate_norm,
    fits_linear,
    fits_norm,
    fits_pair,
    gated_step,
    linear_step,
    several_step,
)
from .recurrence import fits_gdn, gdn_step
from .steps import NO_PACKS, Given, Packed, Packs, Step, run_steps

SPLIT = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b")
"""A GDN layer's projections in the layout that needs no sorting afterwards."""
HEADS = ("q_proj", "k_proj", "v_proj")


def joins_layer(layer: Any, rows: int, dtype: mx.Dtype) -> bool:
    """True where every step of a layer is a kernel's."""
    if dtype != mx.bfloat16 or not fits_norm(layer.input_layernorm, dtype):
        return False
    if not _fits_mlp(layer, rows, dtype):
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


def _fits_mlp(layer: Any, rows: int, dtype: mx.Dtype) -> bool:
    mlp = layer.mlp
    if not is_dense(mlp) or not fits_norm(layer.post_attention_layernorm, dtype):
        return False
    return fits_pair(mlp.gate_proj, mlp.up_proj, rows) and fits_linear(mlp.down_proj, rows)


def is_dense(mlp: Any) -> bool:
    """False for a mixture of experts."""
    return all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj"))


class Chain:
    """Hidden rows on their way through steps that will share a launch.

    hidden: where the rows stand, an array or a step's output; made: what the last launch gave, by
    "step.output".
    """

    def __init__(self, hidden: mx.array, token: mx.array, packs: Packs) -> None:
        self.rows, self.width = hidden.shape[1:]
        self.dtype = hidden.dtype
        self.hidden: Given = hidden
        self.token = token
        self.made: dict[str, mx.array] = {}
        self._packs = packs
        self._steps: list[Step] = []
        self._kept: set[str] = set()

    def add(self, steps: Sequence[Step], hidden: Given, keep: Sequence[str] = ()) -> None:
        """More steps, after which the rows stand in `hidden`; keep: what else is needed later."""
        self._steps += steps
        self._kept |= {*keep}
        self.hidden = hidden

    def launch(self) -> mx.array:
        """Everything added since the last launch: the hidden rows."""
        if self._steps:
            wanted = self._kept | ({self.hidden} if isinstance(self.hidden, str) else set())
            self.made, self.token = run_steps(self._steps, self.token, wanted, self._packs)
            self._steps, self._kept = [], set()
        hidden = self.hidden = self.found(self.hidden)
        return hidden

    def found(self, given: Given) -> mx.array:
        """The array of a name of the last launch."""
        assert not isinstance(given, Packed)
        return self.made[given] if isinstance(given, str) else given

    def normed(self, norm: Any) -> Feed:
        """The rows through `norm`."""
        return feed_normed(self.hidden, norm, self.rows, self.width)


def add_gdn_layer(
    chain: Chain,
    layer: Any,
    window: mx.array,
    state: mx.array,
    every: bool,
    place: mx.array,
) -> tuple[str, str]:
    """A GDN layer up to its MLP: the names of its windows and states, as OpKernels.gdn has them."""
    gdn = layer.linear_attn
    modules = [getattr(gdn, part) for part in SPLIT]
    held: dict[str, Given] = {"window": window, "state": state, "place": place}
    held |= {"qkv": "in.out_0", "a": "in.out_2", "b": "in.out_3"}
    heads = (gdn.num_v_heads, gdn.head_v_dim)
    feed = feed_gate_normed("gdn.y", gdn.norm, "in.out_1", chain.rows, *heads)
    keep = ("gdn.windows", "gdn.states")
    chain.add(
        [
            several_step("in", modules, chain.normed(layer.input_layernorm), (0, heads[0], 0, 0)),
            gdn_step("gdn", gdn, held, chain.rows, every, chain.dtype),
            linear_step("out", gdn.out_proj, feed, chain.hidden),
        ],
        "out.out",
        keep,
    )
    return keep


def add_mlp(chain: Chain, layer: Any) -> None:
    """A dense MLP."""
    mlp = layer.mlp
    gated = chain.normed(layer.post_attention_layernorm)
    inner = Feed("", chain.rows, mlp.up_proj.weight.shape[0], {"x": "up.out"})
    chain.add(
        [
            gated_step("up", mlp.gate_proj, mlp.up_proj, gated),
            linear_step("down", mlp.down_proj, inner, chain.hidden),
        ],
        "down.out",
    )


def add_attention_inputs(chain: Chain, layer: Any, position: mx.array) -> list[str]:
    """The names of queries, keys, values (1, heads, T, D), and queries packed with their gates
    (1, T, H, S); the rows stay where they stand."""
    attention = layer.self_attn
    modules = [getattr(attention, part) for part in HEADS]
    count, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    feed = chain.normed(layer.input_layernorm)
    first = several_step("in", modules, feed, (count, kv_heads, kv_heads))
    shapes = (count, *first.outputs["out_1"][0][2:], first.outputs["out_0"][0][3])
    heads: dict[str, Given] = {part: f"in.out_{i}" for i, part in enumerate("qkv")}
    heads["position"] = position
    ready = prepare_step("ready", attention, attention.rope, heads, chain.rows, shapes)
    keep = [*(f"ready.{part}_out" for part in "qkv"), "in.out_0"]
    chain.add([first, ready], chain.hidden, keep)
    return keep


def add_attention_end(chain: Chain, layer: Any, mixed: mx.array) -> None:
    """The output projection of what attention gave, (1, T, heads * D)."""
    rows = Feed("", chain.rows, mixed.shape[-1], {"x": mixed})
    step = linear_step("out", layer.self_attn.o_proj, rows, chain.hidden)
    chain.add([step], "out.out")


def run_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    span: mx.array,
    gate: mx.array,
    token: mx.array,
    scale: float,
) -> tuple[mx.array, mx.array]:
    """(what `attention.attend` gives, token) in one launch, for every layer of the same shapes."""
    shape = Attention.of(queries, keys, gate, scale=scale)
    held: dict[str, Given] = {"q": queries, "k": keys, "v": values, "span": span}
    look = attend_step("look", shape, held)
    parts: dict[str, Given] = {name: f"look.{name}" for name in look.outputs}
    steps = [look, combine_step("mix", shape, look, parts, gate)]
    made, token = run_steps(steps, token, ["mix.out"], NO_PACKS)
    return made["mix.out"], token


def attend_gated(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    span: mx.array,
    gate: mx.array,
    scale: float,
) -> mx.array:
    """The same in the launches of `attend`, for layers that are not joined."""
    return attend(queries, keys, values, span, scale, gate=gate)
