"""Whole layers as steps of few launches: a layer in one, or all between two attention calls. One
with a mixture of experts is not joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..runtime.steps import NO_PACKS, Given, Packed, Packs, Step, run_steps
from .attention import (
    AttentionRule,
    AttentionShape,
    attend,
    attend_step,
    combine_step,
    fits_heads,
    prepare_step,
)
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

    rows, width, dtype: of the rows; hidden: where they stand, an array or a step's output.
    """

    def __init__(
        self, rows: int, width: int, dtype: mx.Dtype, hidden: Given, token: mx.array, packs: Packs
    ) -> None:
        self.rows, self.width, self.dtype = rows, width, dtype
        self.hidden = hidden
        self.token = token
        self._packs = packs
        self._part = 0
        self._steps: list[Step] = []
        self._kept: set[str] = set()
        self._made: dict[str, mx.array] = {}  # by "step.output"

    @classmethod
    def over(cls, hidden: mx.array, token: mx.array, packs: Packs) -> Chain:
        """From rows (1, T, width) on."""
        rows, width = hidden.shape[1:]
        return cls(rows, width, hidden.dtype, hidden, token, packs)

    def begin(self) -> None:
        """Another part, whose steps are named apart from those of the parts before."""
        self._part += 1

    def name(self, step: str) -> str:
        """A step's name in this part."""
        return f"{step}{self._part}"

    def add(self, steps: Sequence[Step], hidden: Given, keep: Sequence[str] = ()) -> None:
        """More steps, after which the rows stand in `hidden`; keep: what else is needed later."""
        self._steps += steps
        self._kept |= {*keep}
        self.hidden = hidden

    def keep(self) -> Given:
        """Where the rows stand now, which is needed later."""
        if isinstance(self.hidden, str):
            self._kept.add(self.hidden)
        return self.hidden

    def launch(self) -> mx.array:
        """Everything added since the last launch: the hidden rows."""
        self.keep()
        if self._steps:
            made, self.token = run_steps(self._steps, self.token, self._kept, self._packs)
            self._made |= made
            self._steps, self._kept = [], set()
        hidden = self.hidden = self.found(self.hidden)
        return hidden

    def found(self, given: Given) -> mx.array:
        """The array of a name that was kept in a launch."""
        if isinstance(given, Packed):
            return given.view
        return self._made[given] if isinstance(given, str) else given

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
    chain.begin()
    project, mix, end = map(chain.name, ("in", "gdn", "out"))
    gdn = layer.linear_attn
    modules = [getattr(gdn, part) for part in SPLIT]
    held: dict[str, Given] = {"window": window, "state": state, "place": place}
    held |= {"qkv": f"{project}.out_0", "a": f"{project}.out_2", "b": f"{project}.out_3"}
    heads = (gdn.num_v_heads, gdn.head_v_dim)
    feed = feed_gate_normed(f"{mix}.y", gdn.norm, f"{project}.out_1", chain.rows, *heads)
    keep = (f"{mix}.windows", f"{mix}.states")
    normed = chain.normed(layer.input_layernorm)
    chain.add(
        [
            several_step(project, modules, normed, (0, heads[0], 0, 0)),
            gdn_step(mix, gdn, held, chain.rows, every, chain.dtype),
            linear_step(end, gdn.out_proj, feed, chain.hidden),
        ],
        f"{end}.out",
        keep,
    )
    return keep


def add_mlp(chain: Chain, layer: Any) -> None:
    """A dense MLP."""
    up, down = map(chain.name, ("up", "down"))
    mlp = layer.mlp
    gated = chain.normed(layer.post_attention_layernorm)
    inner = Feed("", chain.rows, mlp.up_proj.weight.shape[0], {"x": f"{up}.out"})
    chain.add(
        [
            gated_step(up, mlp.gate_proj, mlp.up_proj, gated),
            linear_step(down, mlp.down_proj, inner, chain.hidden),
        ],
        f"{down}.out",
    )


def add_attention_inputs(chain: Chain, layer: Any, position: mx.array) -> list[str]:
    """The names of queries, keys, values (1, heads, T, D), and queries packed with their gates
    (1, T, H, S); the rows stay where they stand."""
    chain.begin()
    project, ready = map(chain.name, ("in", "ready"))
    attention = layer.self_attn
    modules = [getattr(attention, part) for part in HEADS]
    count, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    feed = chain.normed(layer.input_layernorm)
    first = several_step(project, modules, feed, (count, kv_heads, kv_heads))
    shapes = (count, *first.outputs["out_1"][0][2:], first.outputs["out_0"][0][3])
    heads: dict[str, Given] = {part: f"{project}.out_{i}" for i, part in enumerate("qkv")}
    heads["position"] = position
    second = prepare_step(ready, attention, attention.rope, heads, chain.rows, shapes)
    keep = [*(f"{ready}.{part}_out" for part in "qkv"), f"{project}.out_0"]
    chain.add([first, second], chain.hidden, keep)
    return keep


def add_attention_end(chain: Chain, layer: Any, mixed: mx.array) -> None:
    """The output projection of what attention gave, (1, T, heads * D)."""
    chain.begin()
    end = chain.name("out")
    rows = Feed("", chain.rows, mixed.shape[-1], {"x": mixed})
    step = linear_step(end, layer.self_attn.o_proj, rows, chain.hidden)
    chain.add([step], f"{end}.out")


def run_attention(
    queries: mx.array,
    context: tuple[mx.array, mx.array],
    span: mx.array,
    gate: mx.array,
    token: mx.array,
    scale: float,
) -> tuple[mx.array, mx.array]:
    """(what `attention.attend` gives, token) in one launch, for every layer of the same shapes."""
    shape = AttentionShape.of(queries, context[0], gate, AttentionRule(scale))
    held: dict[str, Given] = {"q": queries, "k": context[0], "v": context[1], "span": span}
    look = attend_step("look", shape, held)
    parts: dict[str, Given] = {name: f"look.{name}" for name in look.outputs}
    steps = [look, combine_step("mix", shape, look, parts, gate)]
    made, token = run_steps(steps, token, ["mix.out"], NO_PACKS)
    return made["mix.out"], token


def attend_gated(
    queries: mx.array,
    context: tuple[mx.array, mx.array],
    span: mx.array,
    gate: mx.array,
    scale: float,
) -> mx.array:
    """The same in the launches of `attend`, for layers that are not joined."""
    return attend(queries, context, span, AttentionRule(scale), gate=gate)
