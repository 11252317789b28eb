"""A DFlash2 draft as one traced function over the context buffers.

The same maths as `layers.py`, which stays the reference. Buffers are read in place, with the number
of rows that count as an array, so that a draft is traced anew only where a buffer has grown. A
draft's last bits can cost acceptance, never bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ...core.cuda.attention import attend, fits_heads, prepare
from ...core.cuda.kernels import MAX_ROWS, CudaKernels, cuda_in_use
from ..config import DrafterConfig
from ..context import ContextBuffer
from . import kernels as ops


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
        self._path = compiled(self._whole)
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
        where = mx.array([position], dtype=mx.int32)
        spans = mx.array([[buffer.start, buffer.rows] for buffer in buffers], dtype=mx.int32)
        path: mx.array = self._path(ids, where, spans, [buffer.arrays() for buffer in buffers])
        return path

    def observe(self, taps: mx.array, position: int, buffers: Sequence[ContextBuffer]) -> None:
        """Project committed tap rows into every layer's context."""
        where = mx.array([position], dtype=mx.int32)
        for buffer, (keys, values) in zip(buffers, self._rows(taps, where), strict=True):
            buffer.append(keys, values)

    def _whole(
        self, ids: mx.array, position: mx.array, spans: mx.array, contexts: list[list[mx.array]]
    ) -> mx.array:
        """ids (1 + count,), the anchor first; contexts: keys and values of each layer."""
        model = self._model
        residual = self._embed(ids[None]).astype(mx.float32) * self._config.input_embedding_scale
        for index, (layer, context) in enumerate(zip(model.layers, contexts, strict=True)):
            residual = self._layer(layer, residual, position, spans[index], context)
        hidden = ops.row_norm(residual[:, 1:], model.norm)
        logits = self._head(hidden)[0]
        selector = model.candidate_selector
        projected = self._kernels.linear(selector.hidden_projection, hidden)[0]
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
        linear, attention = self._kernels.linear, layer.self_attn
        x = ops.row_norm(residual, layer.input_layernorm)
        deltas = linear(layer.attention_conv.kernel_projection, x)
        x = ops.convolve(layer.attention_conv, x, deltas, 0)
        modules = (attention.q_proj, attention.k_proj, attention.v_proj)
        rows = self._kernels.several(modules, x)
        queries = self._split(rows[0], attention.heads)
        keys, values = (self._split(part, attention.kv_heads) for part in rows[1:])
        queries, keys = prepare(attention, self._rope, queries, keys, position)
        mixed = attend(
            queries,
            context[0],
            context[1],
            span,
            attention.head_dim**-0.5,
            causal=attention.causal,
            window=attention.window,
            block=(keys, values),
        )
        return self._after(layer, residual, mixed, deltas)

    def _after(self, layer: Any, residual: mx.array, mixed: mx.array, deltas: mx.array) -> mx.array:
        kernels = self._kernels
        x = kernels.linear(layer.self_attn.o_proj, mixed)
        residual = ops.convolve(layer.attention_conv, x, deltas, 1, residual)
        x = ops.row_norm(residual, layer.post_attention_layernorm)
        deltas = kernels.linear(layer.mlp_conv.kernel_projection, x)
        x = ops.convolve(layer.mlp_conv, x, deltas, 0)
        gated = kernels.gated(layer.mlp.gate_proj, layer.mlp.up_proj, x)
        x = kernels.linear(layer.mlp.down_proj, gated)
        return ops.convolve(layer.mlp_conv, x, deltas, 1, residual)

    def _turned(
        self, attention: Any, keys: mx.array, values: mx.array, position: mx.array
    ) -> list[mx.array]:
        """Keys and values (1, heads, n, head_dim) with positions."""
        keys = self._rope(attention.k_norm(keys).transpose(0, 2, 1, 3), offset=position)
        return [keys, values.transpose(0, 2, 1, 3)]

    def _context_rows(self, taps: mx.array, position: mx.array) -> list[list[mx.array]]:
        model = self._model
        rows = taps.astype(model.norm.weight.dtype)
        fused = model.hidden_norm(self._kernels.linear(model.fc, rows))
        attentions = [layer.self_attn for layer in model.layers]
        modules = [module for one in attentions for module in (one.k_proj, one.v_proj)]
        made = []
        projected = self._kernels.several(modules, fused)
        for index, attention in enumerate(attentions):
            pair = projected[2 * index : 2 * index + 2]
            keys, values = (self._split(part, attention.kv_heads) for part in pair)
            made.append(self._turned(attention, keys, values, position))
        return made

    @staticmethod
    def _split(x: mx.array, heads: int) -> mx.array:
        return x.reshape(1, x.shape[1], heads, -1)


def can_fuse(model: Any, config: DrafterConfig, rope: Any) -> bool:
    """True on CUDA for a bfloat16 DFlash2 drafter whose sizes the kernels take."""
    if not cuda_in_use() or config.selector is None or config.selector.selector_top_k != ops.TOP:
        return False
    dtypes = {
        model.norm.weight.dtype,
        model.candidate_selector.predecessor_codebook.dtype,
        model.candidate_selector.successor_codebook.dtype,
        *(layer.attention_conv.base_kernel.dtype for layer in model.layers),
    }
    rows = min(config.block_size, MAX_ROWS)
    heads_fit = all(fits_heads(layer.self_attn, rope, rows) for layer in model.layers)
    return dtypes == {mx.bfloat16} and heads_fit
