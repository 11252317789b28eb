"""The fused kernels as functions of mlx-lm's modules, a launch each; what does not fit goes to
MLX's operations.

Every one is bitwise independent of its neighbours: T rows give what T calls of one row give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ...device import on_cuda
from ..runtime.compiler import can_compile
from ..runtime.packs import pack_layers
from ..runtime.steps import Packed, run_step
from . import fourbit
from .attention import fits_heads
from .ends import numbers
from .layers import joins_layer
from .projections import (
    feed,
    feed_gate_normed,
    fit_together,
    fits_gate_norm,
    fits_linear,
    fits_pair,
    gated_step,
    linear_step,
    several_step,
)
from .recurrence import fits_gdn, gated_norm_step, gdn_step
from .reference_ops import Fed, OpKernels

JOIN_BELOW_BYTES = 64 << 20
"""Weights of a target's layer whose steps share a launch, since the host is the limiter of what is
smaller. Seen on an H200 at 437 MB a layer: a plain token takes 5.5 ms in separate launches and 5.65
joined, a round 8.0 either way; at 123 MB 4.4 and 4.5, a round 7.0 and 6.8."""
SHARE_BELOW_BYTES = 16 << 20
"""Weights of layers that share a launch with those beside them. Their arguments depend on the turn
of a loop then, which takes registers from the loads: at 123 MB a layer a plain token took 7.3 ms,
where separate launches took 5.4 in the same run (beside other processes)."""

STREAM_FROM_BYTES = 1 << 20
"""4-bit weights of a launch from which on `fourbit.cu` is worth its code; by size alone, so that a
model's rows have one arithmetic whatever their number."""


def cuda_in_use() -> bool:
    """True where MLX computes on an NVIDIA GPU that the kernels can be compiled for."""
    return on_cuda() and can_compile()


class CudaKernels(OpKernels):
    """OpKernels with every call that fits on a fused kernel."""

    is_cuda = True

    def __init__(
        self,
        join_below_bytes: int = JOIN_BELOW_BYTES,
        share_below_bytes: int = SHARE_BELOW_BYTES,
        stream_from_bytes: int = STREAM_FROM_BYTES,
    ) -> None:
        self.packs: dict[int, Packed] = {}
        self._join_below_bytes = join_below_bytes
        self._share_below_bytes = share_below_bytes
        self._stream_from_bytes = stream_from_bytes
        self._shared: dict[int, bool] = {}
        self._joined: dict[tuple[int, int, mx.Dtype], bool] = {}

    def is_small(self, layer: Any) -> bool:
        """Whether a layer's launches would cost more than what the device does in them."""
        return weight_bytes(layer) < self._join_below_bytes

    def shares(self, layer: Any) -> bool:
        if id(layer) not in self._shared:  # asked in every trace
            self._shared[id(layer)] = weight_bytes(layer) < self._share_below_bytes
        return self._shared[id(layer)]

    def _streams(self, *modules: Any) -> bool:
        """Whether 4-bit layers in one launch are so large that the memory's speed is theirs."""
        size = sum(module.weight.nbytes for module in modules)
        return fourbit.takes(modules[0]) and size >= self._stream_from_bytes

    def numbers(self, values: Sequence[int]) -> mx.array:
        return numbers(values)

    def pack(self, layers: Sequence[Any]) -> None:
        self.packs |= pack_layers(layer for layer in layers if self.is_small(layer))

    def linear(
        self, module: Any, x: mx.array, residual: mx.array | None = None, norm: Any = None
    ) -> mx.array:
        rows = feed(x, norm)
        if rows is None or not fits_linear(module, rows.count):
            return super().linear(module, x, residual, norm)
        make = fourbit.linear_step if self._streams(module) else linear_step
        return run_step(make("linear", module, rows, residual))[0]

    def several(
        self,
        modules: Sequence[Any],
        x: mx.array,
        heads: Sequence[int] | None = None,
        norm: Any = None,
    ) -> list[mx.array]:
        rows = feed(x, norm)
        if rows is None or not fit_together(modules, rows.count):
            return super().several(modules, x, heads, norm)
        make = fourbit.several_step if self._streams(*modules) else several_step
        return run_step(make("several", modules, rows, heads))[: len(modules)]

    def fits_attention(self, attention: Any, rope: Any, rows: int, dtype: mx.Dtype) -> bool:
        return fits_heads(attention, rope, rows) and dtype == mx.bfloat16

    def joins(self, layer: Any, rows: int, dtype: mx.Dtype) -> bool:
        key = id(layer), rows, dtype  # asked in every pass
        if key not in self._joined:
            self._joined[key] = joins_layer(layer, rows, dtype) and self.is_small(layer)
        return self._joined[key]

    def gated(self, gate: Any, up: Any, x: mx.array, norm: Any = None) -> mx.array:
        rows = feed(x, norm)
        if rows is None or not fits_pair(gate, up, rows.count):
            return super().gated(gate, up, x, norm)
        make = fourbit.gated_step if self._streams(gate, up) else gated_step
        return run_step(make("gated", gate, up, rows))[0]

    def gdn(
        self,
        layer: Any,
        fed: Fed,
        window: mx.array,
        state: mx.array,
        every: bool = False,
        place: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, mx.array]:
        qkv, a, b = fed
        if not fits_gdn(layer, qkv.dtype):
            return super().gdn(layer, fed, window, state, every, place)
        place = mx.array([0, 0], dtype=mx.int32) if place is None else place
        inputs = {"qkv": qkv, "window": window, "a": a, "b": b, "state": state, "place": place}
        step = gdn_step("gdn", layer, inputs, qkv.shape[1], every, qkv.dtype)
        y, states, windows = run_step(step)
        return y, states, windows

    def gated_norm(self, norm: Any, y: mx.array, z: mx.array) -> mx.array:
        fit = y.shape[-1] % 32 == 0 and norm.weight.dtype == y.dtype == z.dtype
        if not fit or y.dtype not in (mx.bfloat16, mx.float32):
            return super().gated_norm(norm, y, z)
        return run_step(gated_norm_step("norm", norm, y, z))[0]

    def linear_gate_normed(
        self, module: Any, y: mx.array, norm: Any, z: mx.array, residual: mx.array
    ) -> mx.array:
        _, count, heads, dim = y.shape
        fit = fits_linear(module, count) and fits_gate_norm(norm, heads, dim)
        if not fit or {y.dtype, z.dtype} != {mx.bfloat16}:
            return super().linear_gate_normed(module, y, norm, z, residual)
        rows = feed_gate_normed(y, norm, z, count, heads, dim)
        make = fourbit.linear_step if self._streams(module) else linear_step
        return run_step(make("linear", module, rows, residual))[0]


def weight_bytes(module: Any) -> int:
    """Of all its arrays."""
    held: Any = tree_flatten(module.parameters())
    return sum(array.nbytes for _, array in held)
