"""The dynamic convolutions around a DFlash2 branch, in the launch of the projection beside each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...core.cuda.kernels import CudaKernels, feed, fits_linear, layer_arrays, row_tiles
from ...core.cuda.launch import Kernel
from ...core.cuda.sources import fill_tile, project, weight_names
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
  ROWS
  dflash::project_and_convolve<TAPS, MT>(
      tiles, rows, base, mixed, later, M, K, G, plane, first);
"""
AFTER = """
  const size_t row = size_t(blockIdx.x) * 16;
  dflash::TILE tiles[1];
  FILL
  ROWS
  dflash::convolve_and_add<TAPS, MT>(
      tiles, rows, deltas, base, residual, out, M, N, K, G, int(row));
"""


@cache
def _before_kernel(quantized: bool, rows: str) -> Kernel:
    body = BEFORE.replace("FILL", fill_tile("tiles[t]", "", quantized, "2 * TAPS * G"))
    inputs = [*weight_names("", quantized), "base"]
    outputs, text = ["mixed", "later"], TEXT.read_text(encoding="utf-8")
    return project("conv_before", quantized, rows, inputs, outputs, body, text)


@cache
def _after_kernel(quantized: bool) -> Kernel:
    body = AFTER.replace("FILL", fill_tile("tiles[0]", "", quantized))
    inputs = [*weight_names("", quantized), "deltas", "base", "residual"]
    text = TEXT.read_text(encoding="utf-8")
    return project("conv_after", quantized, "", inputs, ["out"], body, text)


def before_branch(
    kernels: CudaKernels, conv: GroupedDynamicConv, residual: mx.array, norm: Any
) -> tuple[mx.array, mx.array]:
    """The residual's rows (1, T, D), normed and convolved, and the deltas for after_branch
    (1, T, K * G)."""
    count, width = residual.shape[1:]
    taps, groups, module = conv.kernel_size, conv.groups, conv.kernel_projection
    rows = feed(residual, norm)
    if rows is None or not fits_linear(module, count) or groups % GROUPS:
        x = ops.row_norm(residual, norm)
        early, late = mx.split(kernels.linear(module, x), 2, axis=-1)
        return ops.convolve(conv, x, early, 0), late
    arrays, template = layer_arrays(module)
    mixed, late = _before_kernel(len(arrays) > 1, rows.kind)(
        inputs=[*rows.arrays, *arrays, conv.base_kernel],
        template=[("TAPS", taps), ("MT", row_tiles(count)), *template],
        scalars={"M": count, "K": width, "G": groups, **rows.scalars},
        blocks=2 * groups // GROUPS,
        output_shapes=[residual.shape, (1, count, taps * groups)],
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
