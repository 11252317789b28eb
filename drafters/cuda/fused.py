"""A DFlash or DFlash2 draft as a few traced functions over the context buffers.

The same maths as `layers.py`, which stays the reference. Buffers are read in place, with the number
of rows that count as an array, so that a draft is traced anew only where a buffer has grown. A
draft's last bits can cost acceptance, never bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ...core.cuda.attention import attend, fits_heads, prepare, prepare_keys
from ...core.cuda.joined import Chain
from ...core.cuda.kernels import CudaKernels, cuda_in_use
from ...core.cuda.projections import MAX_ROWS
from ...core.cuda.steps import turn
from ...core.device import start_on_gpu
from ..config import DrafterConfig
from ..context import ContextBuffer
from . import kernels as ops
from .conv import after_branch, before_branch
from .joined import add_layer, joins_layer

LAYERS_A_START = 2
"""Layers after which the device begins on what it has of a draft."""


class FusedDraft:
    """Drafts and context rows of one model; `head` turns hidden rows into scaled logits."""

    def __init__(
        self,
        model: Any,
        config: DrafterConfig,
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
        rope: Any,
    ) -> None:
        compiled: Any = mx.compile
        self._model = model
        self._config = config
        self._embed = embed
        self._head = head
        self._rope = rope
        self._kernels = CudaKernels()
        self._kernels.pack(model.layers)
        count = len(model.layers)
        self._begin = compiled(self._embedded)
        self._parts = [
            compiled(partial(self._some, range(first, min(first + LAYERS_A_START, count))))
            for first in range(0, count, LAYERS_A_START)
        ]
        self._choose = compiled(self._chosen)
        self._rows = compiled(self._context_rows)
        self.max_rows = min(config.block_size, MAX_ROWS)

    def draft(
        self, anchor: mx.array, count: int, position: int, buffers: Sequence[ContextBuffer]
    ) -> mx.array:
        """`count` ids after the anchor (1,), as DFlashDrafter.draft."""
        for buffer in buffers:
            buffer.reserve(1)
        masks = [self._config.mask_token_id] * count
        ids = mx.concatenate([anchor, mx.array(masks, dtype=anchor.dtype)])
        where = mx.array([position] * 4, dtype=mx.int32)  # longer than what MLX keeps on the host
        spans = [mx.array([b.start, b.rows, 0, 0], dtype=mx.int32) for b in buffers]
        contexts = [buffer.arrays() for buffer in buffers]
        residual, token = self._begin(ids), turn().token
        for part in self._parts:
            residual, token = part(residual, where, spans, contexts, token)
            start_on_gpu([residual])  # the device begins while the host builds the rest
        turn().token = token
        path: mx.array = self._choose(residual, ids)
        return path

    def observe(self, taps: mx.array, position: int, buffers: Sequence[ContextBuffer]) -> None:
        """Project committed tap rows into every layer's context."""
        where = mx.array([position], dtype=mx.int32)
        for buffer, (keys, values) in zip(buffers, self._rows(taps, where), strict=True):
            buffer.append(keys, values)

    def _embedded(self, ids: mx.array) -> mx.array:
        """The block's residual (1, 1 + count, hidden) in float32; ids (1 + count,), the anchor
        first."""
        embedded = self._embed(ids[None]).astype(mx.float32)
        return embedded * self._config.input_embedding_scale

    def _some(
        self,
        indices: range,
        residual: mx.array,
        position: mx.array,
        spans: list[mx.array],
        contexts: list[list[mx.array]],
        token: mx.array,
    ) -> tuple[mx.array, mx.array]:
        """(residual after these layers, token). contexts: keys and values of each layer."""
        chain = Chain(residual, token, self._kernels.packs)
        for index in indices:
            layer, span, context = self._model.layers[index], spans[index], contexts[index]
            if self._kernels.is_small(layer) and joins_layer(layer, chain.rows):
                add_layer(chain, layer, self._rope, position, span, context)
            else:
                hidden = chain.launch()
                chain.hidden = self._layer(layer, hidden, position, span, context)
        return chain.launch(), chain.token

    def _chosen(self, residual: mx.array, ids: mx.array) -> mx.array:
        """The path, (count,)."""
        model = self._model
        hidden = ops.row_norm(residual[:, 1:], model.norm)
        logits = self._head(hidden)
        if self._config.selector is None:
            return mx.argmax(logits, axis=-1).flatten()
        selector = model.candidate_selector
        projected = self._kernels.linear(selector.hidden_projection, hidden)
        return ops.walk(selector, projected, logits, ids[:1])

    def _layer(
        self,
        layer: Any,
        residual: mx.array,
        position: mx.array,
        span: mx.array,
        context: list[mx.array],
    ) -> mx.array:
        """One layer over the block's residual (1, T, hidden) in float32."""
        kernels, mlp = self._kernels, layer.mlp
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        if self._config.selector is None:
            x = self._mixed(layer.self_attn, residual, position, span, context, norms[0])
            residual = residual + kernels.linear(layer.self_attn.o_proj, x)
            x = kernels.gated(mlp.gate_proj, mlp.up_proj, residual, norms[1])
            return residual + kernels.linear(mlp.down_proj, x)
        conv = layer.attention_conv
        x, deltas = before_branch(kernels, conv, residual, norms[0])
        x = self._mixed(layer.self_attn, x, position, span, context)
        residual = after_branch(kernels, layer.self_attn.o_proj, conv, x, deltas, residual)
        x, deltas = before_branch(kernels, layer.mlp_conv, residual, norms[1])
        x = kernels.gated(mlp.gate_proj, mlp.up_proj, x)
        return after_branch(kernels, mlp.down_proj, layer.mlp_conv, x, deltas, residual)

    def _mixed(
        self,
        attention: Any,
        x: mx.array,
        position: mx.array,
        span: mx.array,
        context: list[mx.array],
        norm: Any = None,
    ) -> mx.array:
        """What attention over norm(x) gives before its output projection."""
        modules = (attention.q_proj, attention.k_proj, attention.v_proj)
        counts = (attention.heads, attention.kv_heads, attention.kv_heads)
        heads = self._kernels.several(modules, x, counts, norm)
        queries, keys, values = prepare(attention, self._rope, heads, position)
        return attend(
            queries,
            context[0],
            context[1],
            span,
            attention.head_dim**-0.5,
            causal=attention.causal,
            window=attention.window,
            block=(keys, values),
        )

    def _context_rows(self, taps: mx.array, position: mx.array) -> list[list[mx.array]]:
        model = self._model
        rows = taps.astype(model.norm.weight.dtype)
        fused = self._kernels.linear(model.fc, rows)
        attentions = [layer.self_attn for layer in model.layers]
        modules = [module for one in attentions for module in (one.k_proj, one.v_proj)]
        counts = [one.kv_heads for one in attentions for _ in range(2)]
        projected = self._kernels.several(modules, fused, counts, model.hidden_norm)
        pairs = zip(attentions, projected[::2], projected[1::2], strict=True)
        return [
            list(prepare_keys(attention, self._rope, keys, values, position))
            for attention, keys, values in pairs
        ]


def can_fuse(model: Any, config: DrafterConfig, rope: Any) -> bool:
    """True on CUDA for a bfloat16 drafter whose sizes the kernels take."""
    if not cuda_in_use():
        return False
    dtypes = {model.norm.weight.dtype}
    if config.selector is not None:
        if config.selector.selector_top_k != ops.TOP:
            return False
        dtypes |= {
            model.candidate_selector.predecessor_codebook.dtype,
            model.candidate_selector.successor_codebook.dtype,
            *(layer.attention_conv.base_kernel.dtype for layer in model.layers),
        }
    rows = min(config.block_size, MAX_ROWS)
    heads_fit = all(fits_heads(layer.self_attn, rope, rows) for layer in model.layers)
    return dtypes == {mx.bfloat16} and heads_fit
