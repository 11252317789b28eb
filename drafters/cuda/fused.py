"""A DFlash2 draft in traced pieces: everything between two attention calls is one piece.

The same maths as `layers.py`, which stays the reference; what depends on the number of context
rows, positions and attention, is outside. A draft's last bits can cost acceptance, never bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ...core.cuda.attention import attend, prepare
from ...core.cuda.kernels import MAX_ROWS, CudaKernels, cuda_in_use
from ..config import DrafterConfig
from ..context import ContextBuffer
from ..layers import block_mask
from . import kernels as ops

FLOATS = (mx.bfloat16, mx.float32)


class FusedDraft:
    """Drafts and context rows of one model; `head` turns hidden rows into scaled logits."""

    max_rows = MAX_ROWS

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
        count = len(model.layers)
        self._begin = compiled(self._first)
        self._middle = [compiled(partial(self._between, index)) for index in range(count - 1)]
        self._end = compiled(self._last)
        self._rows = compiled(self._context_rows)

    def draft(
        self, anchor: mx.array, count: int, position: int, buffers: Sequence[ContextBuffer]
    ) -> mx.array:
        """`count` ids after the anchor (1,), as DFlashDrafter.draft."""
        masks = mx.full((count,), self._config.mask_token_id, dtype=anchor.dtype)
        where = mx.array([position], dtype=mx.int32)
        residual, held = self._begin(mx.concatenate([anchor, masks])[None], where)
        for index, buffer in enumerate(buffers):
            mixed = self._attend(index, held[:3], buffer)
            if index + 1 < len(buffers):
                residual, held = self._middle[index](residual, mixed, held[3], where)
        path: mx.array = self._end(residual, mixed, held[3], anchor)
        return path

    def observe(self, taps: mx.array, position: int, buffers: Sequence[ContextBuffer]) -> None:
        """Project committed tap rows into every layer's context."""
        where = mx.array([position], dtype=mx.int32)
        for buffer, (keys, values) in zip(buffers, self._rows(taps, where), strict=True):
            buffer.append(keys, values)

    def _first(self, ids: mx.array, position: mx.array) -> tuple[mx.array, list[mx.array]]:
        residual = self._embed(ids).astype(mx.float32) * self._config.input_embedding_scale
        return residual, self._before(0, residual, position)

    def _between(
        self,
        index: int,
        residual: mx.array,
        mixed: mx.array,
        deltas: mx.array,
        position: mx.array,
    ) -> tuple[mx.array, list[mx.array]]:
        residual = self._after(index, residual, mixed, deltas)
        return residual, self._before(index + 1, residual, position)

    def _last(
        self, residual: mx.array, mixed: mx.array, deltas: mx.array, anchor: mx.array
    ) -> mx.array:
        model = self._model
        residual = self._after(len(model.layers) - 1, residual, mixed, deltas)
        hidden = ops.row_norm(residual[:, 1:], model.norm)
        logits = self._head(hidden)[0]
        selector = model.candidate_selector
        projected = self._kernels.linear(selector.hidden_projection, hidden)[0]
        return ops.walk(selector, projected, logits, anchor)

    def _before(self, index: int, residual: mx.array, position: mx.array) -> list[mx.array]:
        """[queries, keys, values (1, heads, T, head_dim), deltas]."""
        layer, linear = self._model.layers[index], self._kernels.linear
        attention = layer.self_attn
        x = ops.row_norm(residual, layer.input_layernorm)
        deltas = linear(layer.attention_conv.kernel_projection, x)
        x = ops.convolve(layer.attention_conv, x, deltas, 0)
        modules = (attention.q_proj, attention.k_proj, attention.v_proj)
        rows = self._kernels.several(modules, x)
        queries = self._split(rows[0], attention.heads)
        keys, values = (self._split(part, attention.kv_heads) for part in rows[1:])
        if self._is_fused(attention, x):
            queries, keys = prepare(attention, self._rope, queries, keys, position)
            return [queries, keys, values.transpose(0, 2, 1, 3), deltas]
        queries = attention.q_norm(queries).transpose(0, 2, 1, 3)
        queries = self._rope(queries, offset=position)
        return [queries, *self._turned(attention, keys, values, position), deltas]

    def _after(self, index: int, residual: mx.array, mixed: mx.array, deltas: mx.array) -> mx.array:
        layer, kernels = self._model.layers[index], self._kernels
        x = kernels.linear(layer.self_attn.o_proj, mixed)
        residual = ops.convolve(layer.attention_conv, x, deltas, 1, residual)
        x = ops.row_norm(residual, layer.post_attention_layernorm)
        deltas = kernels.linear(layer.mlp_conv.kernel_projection, x)
        x = ops.convolve(layer.mlp_conv, x, deltas, 0)
        gated = kernels.gated(layer.mlp.gate_proj, layer.mlp.up_proj, x)
        x = kernels.linear(layer.mlp.down_proj, gated)
        return ops.convolve(layer.mlp_conv, x, deltas, 1, residual)

    def _is_fused(self, attention: Any, x: mx.array) -> bool:
        return self._kernels.fits_attention(attention, self._rope, x.shape[-2], x.dtype)

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

    def _attend(self, index: int, inputs: Sequence[mx.array], buffer: ContextBuffer) -> mx.array:
        queries, keys, values = inputs
        attention = self._model.layers[index].self_attn
        rows, context_rows = queries.shape[2], buffer.rows
        keys, values = buffer.with_block(keys, values)
        scale = attention.head_dim**-0.5
        if self._is_fused(attention, queries):
            causal, window = attention.causal, attention.window
            return attend(queries, keys, values, scale, causal=causal, window=window)
        out = mx.fast.scaled_dot_product_attention(
            queries,
            keys,
            values,
            scale=scale,
            mask=block_mask(rows, context_rows, attention.window, attention.causal),
        )
        return out.transpose(0, 2, 1, 3).reshape(1, rows, -1)

    @staticmethod
    def _split(x: mx.array, heads: int) -> mx.array:
        return x.reshape(1, x.shape[1], heads, -1)


def can_fuse(model: Any, config: DrafterConfig) -> bool:
    """True on CUDA for a DFlash2 drafter whose sizes and type the kernels take."""
    if not cuda_in_use() or config.selector is None or config.selector.selector_top_k != ops.TOP:
        return False
    dtypes = {
        model.norm.weight.dtype,
        model.candidate_selector.predecessor_codebook.dtype,
        model.candidate_selector.successor_codebook.dtype,
        *(layer.attention_conv.base_kernel.dtype for layer in model.layers),
    }
    return len(dtypes) == 1 and dtypes <= set(FLOATS)
