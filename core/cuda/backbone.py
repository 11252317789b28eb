"""A hybrid target on CUDA: few rows through the fused decoder, many rows through mlx-lm's modules
with the fused recurrence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ..cache.recurrent import Held
from ..device import read_ids
from ..options import Kernels
from ..target.backbones import HybridBackbone
from ..target.gated_delta import GdnTape
from .decoder import Compile, FusedDecoder
from .ops.ends import block_ids, join_rows
from .ops.fused_ops import CudaKernels, cuda_in_use
from .ops.layers import HEADS, SPLIT, is_dense
from .ops.mailbox import WORDS, mailbox
from .ops.projections import MAX_ROWS, fits_linear
from .ops.recurrence import fits_gdn
from .ops.reference_ops import OpKernels


class FusedBackbone(HybridBackbone):
    """HybridBackbone whose passes of up to MAX_ROWS rows are fused and leave replayable tapes."""

    kernels: Kernels = "fused"
    rollback_leaves_work = False  # a rollback is a cut, and nothing is computed for it

    def __init__(self, model: Any, kernels: OpKernels, compile: Compile) -> None:
        super().__init__(model)
        self._kernels = kernels
        kernels.pack(self.layers)
        self._decoder = FusedDecoder(self.layers, self.body.norm, kernels, compile)
        self._join = compile(join_rows)
        self._head = compile(partial(kernels.linear, self.head_projection))

    @property
    def fits(self) -> bool:
        """Whether the projections of a layer and the head are of a kind that the kernels take."""
        gdn = next(layer.linear_attn for layer in self.layers if layer.is_linear)
        return fits_linear(gdn.out_proj, 1) and fits_linear(self.head_projection, 1)

    @property
    def independent_rows(self) -> int:
        """Widest pass of which every operation is one of the kernels, or row by row in MLX; 1
        where some operation is MLX's own product, whose order of addition follows the width."""
        return next((rows for rows in range(MAX_ROWS, 1, -1) if self._all_fit(rows)), 1)

    @property
    def stock(self) -> HybridBackbone:
        return HybridBackbone(self.model)

    def _all_fit(self, rows: int) -> bool:
        return fits_linear(self.head_projection, rows) and all(
            fits_layer(self._kernels, layer, rows) for layer in self.layers
        )

    @property
    def head_projection(self) -> Any:
        return self.body.embed_tokens if self.is_tied else self.text.lm_head

    def head(self, hidden: mx.array) -> mx.array:
        if hidden.shape[1] > MAX_ROWS:
            return self._kernels.linear(self.head_projection, hidden)
        logits: mx.array = self._head(hidden)
        return logits

    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[Any]]:
        if token_ids.shape[1] > MAX_ROWS:
            return super().run(token_ids, cache, tap_ids, record)
        return self._decoder.run(self.embed(token_ids), cache, tap_ids, record)

    def block_ids(self, anchor: mx.array, drafts: mx.array, vocab: int) -> mx.array:
        integers = drafts.dtype in (mx.int32, mx.uint32) and anchor.dtype == mx.int32
        if not (integers and self._kernels.is_cuda):
            return super().block_ids(anchor, drafts, vocab)
        return block_ids(read_ids(anchor)[0], drafts, vocab)

    def start_reading(self, arrays: Sequence[mx.array]) -> Callable[[], list[list[int]]]:
        are_ids = all(array.dtype in (mx.int32, mx.uint32) and array.ndim == 1 for array in arrays)
        fits = are_ids and self._kernels.is_cuda and sum(array.size for array in arrays) < WORDS
        box = mailbox() if fits else None
        return super().start_reading(arrays) if box is None else box.post(arrays)

    def join_taps(self, taps: Sequence[mx.array]) -> mx.array:
        few = taps[0].shape[1] <= MAX_ROWS and self._kernels.is_cuda
        return self._join(taps) if few else super().join_taps(taps)

    def recur(
        self, gdn: Any, x: mx.array, entry: Any, record: bool
    ) -> tuple[mx.array, GdnTape | None]:
        return (
            super().recur(gdn, x, entry, record)
            if record
            else (
                self._decoder.gdn_rows(gdn, x, entry),
                None,
            )
        )

    def replay(self, tapes: Sequence[Any], keep: int) -> Sequence[Held | None]:
        wide = any(isinstance(tape, GdnTape) for tape in tapes)
        return super().replay(tapes, keep) if wide else self._decoder.replay(tapes, keep)


def fits_layer(kernels: OpKernels, layer: Any, rows: int) -> bool:
    """Whether the kernels take everything of a layer that adds up numbers, but its norms."""
    mlp = layer.mlp
    if not is_dense(mlp):
        return False
    modules = [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if layer.is_linear:
        gdn = layer.linear_attn
        sorted_later = ("in_proj_qkvz", "in_proj_ba")
        inputs = sorted_later if hasattr(gdn, sorted_later[0]) else SPLIT
        modules += [getattr(gdn, name) for name in (*inputs, "out_proj")]
        mixes = fits_gdn(gdn, mx.bfloat16)
    else:
        attention = layer.self_attn
        modules += [getattr(attention, name) for name in (*HEADS, "o_proj")]
        mixes = kernels.fits_attention(attention, attention.rope, rows, mx.bfloat16)
    return mixes and all(fits_linear(module, rows) for module in modules)


def has_one_dtype(backbone: HybridBackbone) -> bool:
    """Whether embedded rows are of the norms' dtype: the kernels count on it in every layer."""
    rows = backbone.embed(mx.zeros((1, 1), dtype=mx.int32))
    return bool(rows.dtype == backbone.layers[0].input_layernorm.weight.dtype)


def fused_backbone(backbone: Any) -> FusedBackbone | None:
    """The fused backbone of a loaded hybrid where MLX computes on CUDA, else None."""
    if type(backbone) is not HybridBackbone or not cuda_in_use() or not has_one_dtype(backbone):
        return None
    compiled: Any = mx.compile
    return FusedBackbone(backbone.model, CudaKernels(), compiled)
