"""A hybrid target on CUDA: few rows through the fused decoder, many rows through mlx-lm's modules
with the fused recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..backbones import HybridBackbone
from ..gdn import GdnTape
from .fused import Compile, FusedDecoder
from .kernels import MAX_ROWS, CudaKernels, cuda_in_use, fits_linear
from .ops import OpKernels


class FusedBackbone(HybridBackbone):
    """HybridBackbone whose passes of up to MAX_ROWS rows are fused and leave replayable tapes."""

    is_fused = True

    def __init__(self, model: Any, kernels: OpKernels, compile: Compile) -> None:
        super().__init__(model)
        self._kernels = kernels
        self._decoder = FusedDecoder(self.layers, self.body.norm, kernels, compile)

    @property
    def fits(self) -> bool:
        """Whether the projections of a layer and the head are of a kind that the kernels take."""
        gdn = next(layer.linear_attn for layer in self.layers if layer.is_linear)
        head = self.body.embed_tokens if self.is_tied else self.text.lm_head
        return fits_linear(gdn.out_proj, 1) and fits_linear(head, 1)

    def head(self, hidden: mx.array) -> mx.array:
        return self._kernels.linear(
            self.body.embed_tokens if self.is_tied else self.text.lm_head, hidden
        )

    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[Any]]:
        if token_ids.shape[1] > MAX_ROWS:
            return super().run(token_ids, cache, tap_ids, record)
        return self._decoder.run(self.embed(token_ids), cache, tap_ids, record)

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

    def replay(self, tapes: Sequence[Any], keep: int) -> list[tuple[mx.array, mx.array] | None]:
        wide = any(isinstance(tape, GdnTape) for tape in tapes)
        return super().replay(tapes, keep) if wide else self._decoder.replay(tapes, keep)


def fused_backbone(backbone: Any) -> FusedBackbone | None:
    """The fused backbone of a loaded hybrid where MLX computes on CUDA, else None."""
    if type(backbone) is not HybridBackbone or not cuda_in_use():
        return None
    compiled: Any = mx.compile
    return FusedBackbone(backbone.model, CudaKernels(), compiled)
