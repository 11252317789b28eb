"""The dynamic convolutions around a DFlash2 branch, in the launch of the projection beside each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...core.cuda.kernels import CudaKernels, fits_linear, layer_arrays, row_tiles
from ...core.cuda.launch import Kernel
from ...core.cuda.sources import fill_tile, make, weight_names
from ..layers import GroupedDynamicConv
from . import kernels as ops

TEXT = Path(__file__).resolve().parent / "conv.cu"
GROUPS = 16
"""Groups whose deltas a block has."""
BEFORE = """
  const int parts = G / 16, plane = blockIdx.x / parts, first = blockIdx.x % parts * 16;
  dflash::TILE tiles[TAPS];
  for (int t = 0; t < TAPS; ++t) {
    const size_t row = (size_t(plane) * TAPS + t) * G + first;
    FILL
  }
  dflash::project_and_convolve<TAPS, MT>(
      tiles, x, base, mixed, later, M, K, G, plane, first);
"""
AFTER = """
  const size_t row = size_t(blockIdx.x) * 16;
  dflash::TILE tiles[1];
  FILL
  dflash::convolve_and_add<TAPS, MT>(
      tiles, x, deltas, base, residual, out, M, N, K, G, int(row));
"""


@cache
def _before_kernel(quantized: bool) -> Kernel:
    body = BEFORE.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    body = body.replace("FILL", fill_tile("tiles[t]", "", quantized, "2 * TAPS * G"))
    inputs = ["x", *weight_names("", quantized), "base"]
    return _make("conv_before", inputs, ["mixed", "later"], body, quantized)


@cache
def _after_kernel(quantized: bool) -> Kernel:
    body = AFTER.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    body = body.replace("FILL", fill_tile("tiles[0]", "", quantized))
    inputs = ["x", *weight_names("", quantized), "deltas", "base", "residual"]
    return _make("conv_after", inputs, ["out"], body, quantized)


def _make(name: str, inputs: list[str], outputs: list[str], body: str, quantized: bool) -> Kernel:
    text = TEXT.read_text(encoding="utf-8")
    return make(f"{name}{'_q4' if quantized else ''}", inputs, outputs, body, "skinny", text=text)


def before_branch(
    kernels: CudaKernels, conv: GroupedDynamicConv, x: mx.array
) -> tuple[mx.array, mx.array]:
    """Normed rows (1, T, D) -> (the convolved rows, the deltas for after_branch (1, T, K * G))."""
    _, rows, width = x.shape
    taps, groups, module = conv.kernel_size, conv.groups, conv.kernel_projection
    if not fits_linear(module, rows) or groups % GROUPS:
        deltas = kernels.linear(module, x)
        early, late = mx.split(deltas, 2, axis=-1)
        return ops.convolve(conv, x, early, 0), late
    arrays, template = layer_arrays(module)
    mixed, late = _before_kernel(len(arrays) > 1)(
        inputs=[x, *arrays, conv.base_kernel],
        template=[("TAPS", taps), ("MT", row_tiles(rows)), *template],
        scalars={"M": rows, "K": width, "G": groups},
        blocks=2 * groups // GROUPS,
        output_shapes=[x.shape, (1, rows, taps * groups)],
        output_dtypes=[mx.bfloat16] * 2,
    )
    return mixed, late


def after_branch(
    kernels: CudaKernels,
    module: Any,
    conv: GroupedDynamicConv,
    x: mx.array,
    deltas: mx.array,
    residual: mx.array,
) -> mx.array:
    """residual + conv(module(x)), (1, T, D) in float32."""
    rows, width = x.shape[1:]
    if not fits_linear(module, rows) or residual.shape[-1] % 16:
        return ops.convolve(conv, kernels.linear(module, x), deltas, 1, residual)
    arrays, template = layer_arrays(module)
    outputs = residual.shape[-1]
    (out,) = _after_kernel(len(arrays) > 1)(
        inputs=[x, *arrays, deltas, conv.base_kernel, residual],
        template=[("TAPS", conv.kernel_size), ("MT", row_tiles(rows)), *template],
        scalars={"M": rows, "N": outputs, "K": width, "G": conv.groups},
        blocks=outputs // 16,
        output_shapes=[residual.shape],
        output_dtypes=[mx.float32],
    )
    return out
