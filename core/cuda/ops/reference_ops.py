"""What the fused kernels compute, in MLX's own operations: their reference, and the fall-back for
shapes and types that they do not take. The arithmetic is mlx-lm's, operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu

from ...target.gated_delta import GdnRows, convolve, recur
from ..runtime.steps import NO_PACKS, Packs

Fed = tuple[mx.array, mx.array, mx.array]
"""What the projections of a Gated DeltaNet layer gave its recurrence: qkv, a, b."""


class OpKernels:
    """The interface of CudaKernels without CUDA. T = rows, at most what the caller gives.

    packs: where the layers' arrays stand together, for launches of several steps.
    """

    packs: Packs = NO_PACKS
    is_cuda = False

    def numbers(self, values: Sequence[int]) -> mx.array:
        """int32 (n,) for kernels to read."""
        return mx.array(list(values), dtype=mx.int32)

    def pack(self, layers: Sequence[Any]) -> None:
        """Put each layer's arrays together; plain operations take them as they are."""

    def linear(
        self, module: Any, x: mx.array, residual: mx.array | None = None, norm: Any = None
    ) -> mx.array:
        """(1, T, K) -> (1, T, N), plus the residual where there is one; an embedding is a head.

        norm: an RMSNorm that x goes through first, in its weight's dtype from there on.
        """
        x = normed(norm, x)
        tied = isinstance(module, nn.Embedding | nn.QuantizedEmbedding)
        y: mx.array = module.as_linear(x) if tied else module(x)
        return y if residual is None else residual + y

    def several(
        self,
        modules: Sequence[Any],
        x: mx.array,
        heads: Sequence[int] | None = None,
        norm: Any = None,
    ) -> list[mx.array]:
        """Every layer's output for the same x; heads: how many each is split into, 0 for none."""
        x = normed(norm, x)
        outputs = [self.linear(module, x) for module in modules]
        return [
            out.reshape(split_heads(x.shape, out.shape[-1], index, heads))
            for index, out in enumerate(outputs)
        ]

    def fits_attention(self, attention: Any, rope: Any, rows: int, dtype: mx.Dtype) -> bool:
        """Whether `prepare` and `attend` take this attention; plain operations never need them."""
        return False

    def joins(self, layer: Any, rows: int, dtype: mx.Dtype) -> bool:
        """Whether a layer's steps share a launch (`joined.py`); plain operations never do."""
        return False

    def shares(self, layer: Any) -> bool:
        """Whether a joined layer's launch is also that of the layers beside it."""
        return False

    def gated(self, gate: Any, up: Any, x: mx.array, norm: Any = None) -> mx.array:
        """silu(gate(x)) * up(x)."""
        x = normed(norm, x)
        product: mx.array = swiglu(gate(x), up(x))
        return product

    def gdn(
        self,
        layer: Any,
        fed: Fed,
        window: mx.array,
        state: mx.array,
        every: bool = False,
        place: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """(y (1, T, Hv, Dv), state, window) of one layer between its projections.

        fed: qkv (1, T, channels) before the convolution, a and b (1, T, Hv); window:
        (1, kernel - 1, channels) before it; state: (1, Hv, Dv, Dk).
        every: instead the states after each row (T, Hv, Dv, Dk), and the window and the rows in
        one (1, kernel - 1 + T, channels), of which any kept prefix is a view. place: (2,) int32,
        of which the second says how many rows of an earlier block are kept where window and state
        are all that its `every` gave; 0, or no place: they are what they are.
        """
        qkv, a, b = fed
        rows = qkv.shape[1]
        if place is not None:
            window, state = kept(window, state, layer.conv_kernel_size - 1, place[1:])
        conv_input = mx.concatenate([window, qkv], axis=1)
        recurrent = GdnRows(*convolve(layer, conv_input, rows), a, b)
        if not every:
            y, state = recur(layer, recurrent, state)
            return y, state, mx.contiguous(conv_input[:, -(layer.conv_kernel_size - 1) :])
        outputs, states = [], []
        for row in range(rows):
            y, state = recur(layer, recurrent.part(row, row + 1), state)
            outputs.append(y)
            states.append(state)
        return mx.concatenate(outputs, axis=1), mx.concatenate(states), conv_input

    def gated_norm(self, norm: Any, y: mx.array, z: mx.array) -> mx.array:
        """A GDN layer's output norm, gated by z: (1, T, Hv, Dv) -> (1, T, Hv * Dv)."""
        gated: mx.array = norm(y, z)
        return gated.reshape(1, y.shape[1], -1)

    def linear_gate_normed(
        self, module: Any, y: mx.array, norm: Any, z: mx.array, residual: mx.array
    ) -> mx.array:
        """The end of a GDN layer: residual + module(gated_norm(y, z)), (1, T, N)."""
        return self.linear(module, self.gated_norm(norm, y, z), residual)


def normed(norm: Any, x: mx.array) -> mx.array:
    """norm(x) in the dtype of its weight, or x itself where there is none."""
    if norm is None:
        return x
    out: mx.array = norm(x)
    return out.astype(norm.weight.dtype)


def kept(
    windows: mx.array, states: mx.array, before: int, keep: mx.array
) -> tuple[mx.array, mx.array]:
    """`Cut.arrays` for a number (1,) that the device has, so that a traced caller need not know it;
    before: the window's rows."""
    window = mx.slice(windows, keep, (1,), (1, before, windows.shape[2]))
    state = mx.slice(states, mx.maximum(keep - 1, 0), (0,), (1, *states.shape[1:]))
    return window, state


def split_heads(
    shape: Sequence[int], width: int, index: int, heads: Sequence[int] | None
) -> tuple[int, ...]:
    """Shape of output `index`, `width` wide, for an input of `shape`."""
    count = heads[index] if heads else 0
    return (*shape[:-1], count, width // count) if count else (*shape[:-1], width)
