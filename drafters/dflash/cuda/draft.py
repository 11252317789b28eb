"""A DFlash or DFlash2 draft as a few traced functions over the context buffers.

The same maths as `layers.py`, which stays the reference. Buffers are read in place, with the number
of rows that count as an array, so that a draft is traced anew only where a buffer has grown. A
draft's last bits can cost acceptance, never bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import mlx.core as mx

from ....core.cuda.ops.attention import AttentionRule, attend, fits_heads, prepare
from ....core.cuda.ops.fused_ops import CudaKernels, cuda_in_use
from ....core.cuda.ops.layers import HEADS, Chain
from ....core.cuda.ops.projections import MAX_ROWS, Feed, fits_linear, linear_step
from ....core.cuda.runtime.packs import pack_layers
from ....core.cuda.runtime.steps import UNIT_BYTES, Given, Packed, turn
from ....core.device import read_ids, start_on_gpu
from ..config import DrafterConfig
from ..context import ContextBuffer
from . import steps as ops
from .context_rows import ContextRows
from .conv import after_branch, before_branch
from .layers import LayerContext, add_layer, joins_layer

LAYERS_A_START = 2
"""Layers after which the device begins on what it has of a draft that takes it longer than the
host; the first time after one."""
PLACE = UNIT_BYTES // mx.int32.size
"""Numbers that the host gives a draft stand so far apart: the position, a span a buffer, ids."""


@dataclass(frozen=True)
class DraftEnds:
    """Both ends of a draft, which are the target's.

    embed: ids (1, T) -> hidden rows (1, T, hidden); head: hidden rows -> scaled logits (1, T,
    vocab); table: the embedding where `embed` does nothing else, or None; projection: the head's
    where `head` does nothing else, or None.
    """

    embed: Callable[[mx.array], mx.array]
    head: Callable[[mx.array], mx.array]
    table: Any
    projection: Any


class FusedDraft:
    """Drafts and context rows of one model. groups: layers whose contexts share a buffer."""

    def __init__(
        self,
        model: Any,
        config: DrafterConfig,
        groups: Sequence[Sequence[int]],
        ends: DraftEnds,
        rope: Any,
    ) -> None:
        table, projection = ends.table, ends.projection
        compiled: Any = mx.compile
        self._model = model
        self._config = config
        self._embed = ends.embed
        self._head = ends.head
        self._rope = rope
        self._table = table if table is not None and fits_linear(table, 1) else None
        self._kernels = CudaKernels()
        layers = model.layers
        self._place = {i: (g, at) for g, some in enumerate(groups) for at, i in enumerate(some)}
        rows = ContextRows(model, [i for some in groups for i in some], rope, self._kernels)
        self._kernels.packs |= rows.packs
        self._kernels.packs |= pack_layers(layers, self._kernels.packs)
        self._ids_at = (1 + len(groups)) * PLACE
        is_small = all(self._kernels.is_small(layer) for layer in layers)
        self._shares = all(self._kernels.shares(layer) for layer in layers)
        joins = self._shares and projection is not None and fits_linear(projection, 1)
        self._projection = projection if joins and self._kernels.shares(projection) else None
        self._parts = [
            compiled(partial(self._some, part)) for part in parts_of(len(layers), is_small)
        ]
        self._rows = compiled(rows)
        self.max_rows = min(config.block_size, MAX_ROWS)

    def draft(
        self, anchor: mx.array, count: int, position: int, buffers: Sequence[ContextBuffer]
    ) -> mx.array:
        """`count` ids after the anchor (1,), as DFlashDrafter.draft. buffers: one a group."""
        for buffer in buffers:
            buffer.reserve(1)
        if not self._shares:  # the device ends what it was shown while the host builds the rest
            start_on_gpu([array for buffer in buffers for array in buffer.arrays()])
        placed = [[position], *([buffer.start, buffer.rows] for buffer in buffers)]
        places = [n for some in placed for n in (*some, *[0] * (PLACE - len(some)))]
        ids = [*read_ids(anchor), *[self._config.mask_token_id] * count]
        given = self._kernels.numbers([*places, *ids])
        contexts = [buffer.arrays() for buffer in buffers]
        rows = None if self._table is not None else self._embed(given[None, self._ids_at :])
        state, token = [] if rows is None else [rows], turn().token
        for part in self._parts:
            state, token = part(state, given, contexts, token)
            if len(self._parts) > 1:
                start_on_gpu(state)  # the device begins while the host builds the rest
        turn().token = token
        return state[0]

    def observe(self, taps: mx.array, position: int, buffers: Sequence[ContextBuffer]) -> None:
        """Project committed tap rows into every layer's context."""
        where = self._kernels.numbers([position, 0, 0, 0])  # MLX keeps two or less on the host
        keys, values, turn().token = self._rows(taps, where, turn().token)
        first = 0
        for buffer in buffers:
            part = slice(first, first + buffer.heads)
            buffer.append(keys[:, part], values[:, part])
            first += buffer.heads

    def _some(
        self,
        indices: range,
        state: list[mx.array],
        given: mx.array,
        contexts: list[list[mx.array]],
        token: mx.array,
    ) -> tuple[list[mx.array], mx.array]:
        """([residual] after these layers, or [path] after the last, and token). state: the residual
        before them, the embedded ids before the first, or nothing; contexts: keys and values of
        each group."""
        config, ids = self._config, Packed(given, given, self._ids_at // PLACE)
        rows, scale = given.shape[0] - self._ids_at, config.input_embedding_scale
        packs = self._kernels.packs
        if not state:
            step = ops.embed_step("embed", self._table, ids, rows, scale)
            chain = Chain(rows, config.hidden_size, mx.float32, "embed.out", token, packs)
            chain.add([step], "embed.out")
        elif indices[0] == 0:
            chain = Chain.over(state[0].astype(mx.float32) * scale, token, packs)
        else:
            chain = Chain.over(state[0], token, packs)
        for index in indices:
            layer = self._model.layers[index]
            context = self._context(index, given, contexts)
            if joins_layer(layer, rows):
                add_layer(chain, layer, self._rope, context)
                if not self._shares:
                    chain.launch()
            else:
                chain.hidden = self._layer(layer, chain.launch(), context)
        if indices[-1] == len(self._model.layers) - 1:
            return self._chosen(chain, ids)
        return [chain.launch()], chain.token

    def _context(self, index: int, given: mx.array, contexts: list[list[mx.array]]) -> LayerContext:
        group, at = self._place[index]
        keys, values = contexts[group]
        first = at * self._model.layers[index].self_attn.kv_heads
        span = Packed(given, given, 1 + group)
        return LayerContext(keys, values, first, span, Packed(given, given, 0))

    def _chosen(self, chain: Chain, ids: Packed) -> tuple[list[mx.array], mx.array]:
        """([the path (count,)], token)."""
        model, count = self._model, chain.rows - 1
        norm = ops.row_norm_step("norm", chain.hidden, model.norm, count, skip=1)
        chain.add([norm], chain.hidden, ["norm.out"])
        if self._config.selector is None:
            chain.launch()
            logits = self._head(chain.found("norm.out"))
            return [mx.argmax(logits, axis=-1).flatten()], chain.token
        selector = model.candidate_selector
        fed = Feed("", count, chain.width, {"x": "norm.out"})
        projected: Given = "project.out"
        if fits_linear(selector.hidden_projection, count):
            step = linear_step("project", selector.hidden_projection, fed)
            chain.add([step], chain.hidden, ["project.out"])
        else:
            chain.launch()
            hidden = chain.found("norm.out")
            fed = Feed("", count, chain.width, {"x": hidden})
            projected = self._kernels.linear(selector.hidden_projection, hidden)
            projected = projected.astype(hidden.dtype)
        if self._projection is not None:
            head = linear_step("head", self._projection, fed)
            (_, _, vocab), dtype = head.outputs["out"]
            tops = ops.top_steps("head.out", count, vocab, dtype)
            chain.add([head], chain.hidden)
        else:
            chain.launch()
            logits = self._head(chain.found("norm.out"))
            tops = ops.top_steps(logits, count, logits.shape[2], logits.dtype)
            projected = chain.found(projected)
        chain.add(ops.walk_steps(selector, projected, tops, ids), chain.hidden, ["walk.out"])
        chain.launch()
        return [chain.found("walk.out")], chain.token

    def _layer(self, layer: Any, residual: mx.array, context: LayerContext) -> mx.array:
        """One layer over the block's residual (1, T, hidden) in float32, in a launch a step."""
        kernels, mlp = self._kernels, layer.mlp
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        if self._config.selector is None:
            x = self._mixed(layer.self_attn, residual, context, norms[0])
            residual = residual + kernels.linear(layer.self_attn.o_proj, x)
            x = kernels.gated(mlp.gate_proj, mlp.up_proj, residual, norms[1])
            return residual + kernels.linear(mlp.down_proj, x)
        conv = layer.attention_conv
        x, deltas = before_branch(kernels, conv, residual, norms[0])
        x = self._mixed(layer.self_attn, x, context)
        residual = after_branch(kernels, layer.self_attn.o_proj, conv, x, deltas, residual)
        x, deltas = before_branch(kernels, layer.mlp_conv, residual, norms[1])
        x = kernels.gated(mlp.gate_proj, mlp.up_proj, x)
        return after_branch(kernels, mlp.down_proj, layer.mlp_conv, x, deltas, residual)

    def _mixed(
        self, attention: Any, x: mx.array, context: LayerContext, norm: Any = None
    ) -> mx.array:
        """What attention over norm(x) gives before its output projection."""
        modules = [getattr(attention, name) for name in HEADS]
        counts = (attention.heads, attention.kv_heads, attention.kv_heads)
        heads = self._kernels.several(modules, x, counts, norm)
        queries, keys, values = prepare(attention, self._rope, heads, context.position)
        return attend(
            queries,
            context.arrays(attention.kv_heads),
            context.span,
            AttentionRule(
                attention.head_dim**-0.5, causal=attention.causal, window=attention.window
            ),
            block=(keys, values),
        )


def parts_of(layers: int, is_small: bool) -> list[range]:
    """The layers of each traced function."""
    if is_small:
        return [range(layers)]
    cuts = [0, *range(1, layers, LAYERS_A_START), layers]
    return [range(first, last) for first, last in pairwise(cuts)]


def can_fuse(model: Any, config: DrafterConfig, rope: Any) -> bool:
    """True on CUDA for a bfloat16 drafter whose sizes the kernels take."""
    if not cuda_in_use():
        return False
    dtypes = {model.norm.weight.dtype}
    if config.selector is not None:
        selector = model.candidate_selector
        books = (selector.predecessor_codebook, selector.successor_codebook)
        packed = any(not isinstance(book, mx.array) for book in books)
        if packed or config.selector.selector_top_k != ops.TOP:
            return False
        dtypes |= {book.dtype for book in books}
        dtypes |= {layer.attention_conv.base_kernel.dtype for layer in model.layers}
    rows = min(config.block_size, MAX_ROWS)
    heads_fit = all(fits_heads(layer.self_attn, rope, rows) for layer in model.layers)
    return dtypes == {mx.bfloat16} and heads_fit
