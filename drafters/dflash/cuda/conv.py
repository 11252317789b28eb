"""The dynamic convolutions around a DFlash2 branch, in the launch of the projection beside each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ....core.cuda.ops.bodies import FACTORS, fill_tile, point_tile, project
from ....core.cuda.ops.fused_ops import CudaKernels
from ....core.cuda.ops.projections import Feed, feed, fits_linear, row_tiles, weights
from ....core.cuda.runtime.steps import Body, Given, Step, run_step
from ..layers import GroupedDynamicConv
from . import steps as ops

FILE = Path(__file__).resolve().parent / "conv.cu"
OUTPUTS = 16
"""Of a tile: for every tap of both planes as many groups as there is room for."""
BEFORE = """
  const size_t row = size_t(block) * dflash::Deltas<TAPS>::SIZE;
  dflash::TILE tiles[1];
  tiles[0].apart = G;
  FILL
  WARM
  ROWS
  dflash::project_and_convolve<TAPS, MT>(
      tiles, rows, base, mixed, later, M, K, G, int(row), first, held);
"""
AFTER = """
  const size_t row = size_t(block) * 16;
  dflash::TILE tiles[1];
  FILL
  WARM
  ROWS
  dflash::convolve_and_add<TAPS, MT>(
      tiles, rows, deltas, base, residual, out, M, N, K, G, int(row), first, held);
"""


@cache
def _before(quantized: bool, kind: str) -> Body:
    text = BEFORE.replace("FILL", point_tile("tiles[0]", "", quantized))
    shared = f"dflash::HeldBefore<TAPS, MT, {FACTORS[kind]}>"
    return _body(project(text, quantized, kind, "1", "dflash::Deltas<TAPS>"), shared)


@cache
def _after(quantized: bool) -> Body:
    text = AFTER.replace("FILL", fill_tile("tiles[0]", "", quantized))
    return _body(project(text, quantized, "", "1"), "dflash::HeldAfter<MT>")


def _body(body: Body, shared: str) -> Body:
    return replace(body, files=(*body.files, FILE), shared=shared)


def fits_conv(conv: GroupedDynamicConv, rows: int) -> bool:
    """True where a convolution goes into the launches beside it."""
    groups = groups_a_block(conv)
    return fits_linear(conv.kernel_projection, rows) and groups > 0 and conv.groups % groups == 0


def groups_a_block(conv: GroupedDynamicConv) -> int:
    """Groups whose deltas a block has; 0 where a tile has no room for one."""
    return OUTPUTS // (2 * conv.kernel_size)


def before_branch(
    kernels: CudaKernels, conv: GroupedDynamicConv, residual: mx.array, norm: Any
) -> tuple[mx.array, mx.array]:
    """The residual's rows (1, T, D), normed and convolved, and the deltas for after_branch
    (1, T, K * G)."""
    rows = feed(residual, norm)
    if rows is None or not fits_conv(conv, rows.count):
        x = ops.row_norm(residual, norm)
        early, late = mx.split(kernels.linear(conv.kernel_projection, x), 2, axis=-1)
        return ops.convolve(conv, x, early, 0), late
    mixed, late = run_step(before_step("before", conv, rows))
    return mixed, late


def before_step(name: str, conv: GroupedDynamicConv, rows: Feed) -> Step:
    """mixed and later, as `before_branch` returns them."""
    arrays, constants = weights(conv.kernel_projection)
    taps, groups = conv.kernel_size, conv.groups
    return Step(
        name,
        _before(bool(constants), rows.kind),
        groups // groups_a_block(conv),
        {**rows.inputs, **arrays, "base": conv.base_kernel},
        {
            "mixed": ((1, rows.count, rows.width), mx.bfloat16),
            "later": ((1, rows.count, taps * groups), mx.bfloat16),
        },
        {"TAPS": taps, "MT": row_tiles(rows.count), **constants},
        {"M": rows.count, "K": rows.width, "G": groups, **rows.scalars},
    )


def after_branch(
    kernels: CudaKernels,
    module: Any,
    conv: GroupedDynamicConv,
    x: mx.array,
    deltas: mx.array,
    residual: mx.array,
) -> mx.array:
    """residual + conv(module(x)), (1, T, D) in float32."""
    rows = feed(x, None)
    if rows is None or not fits_linear(module, rows.count) or residual.shape[-1] % 16:
        return ops.convolve(conv, kernels.linear(module, x), deltas, 1, residual)
    return run_step(after_step("after", module, conv, rows, deltas, residual))[0]


def after_step(
    name: str, module: Any, conv: GroupedDynamicConv, rows: Feed, deltas: Given, residual: Given
) -> Step:
    """out (1, T, N) in float32, as `after_branch` returns it."""
    arrays, constants = weights(module)
    outputs = module.weight.shape[0]
    return Step(
        name,
        _after(bool(constants)),
        outputs // 16,
        {
            **rows.inputs,
            **arrays,
            "deltas": deltas,
            "base": conv.base_kernel,
            "residual": residual,
        },
        {"out": ((1, rows.count, outputs), mx.float32)},
        {"TAPS": conv.kernel_size, "MT": row_tiles(rows.count), **constants},
        {"M": rows.count, "N": outputs, "K": rows.width, "G": conv.groups},
    )
