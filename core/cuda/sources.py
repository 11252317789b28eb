"""The CUDA text beside this file, made into MLX kernels once a process.

A kernel's name carries a digest of its text: MLX keeps compiled kernels on disk by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

FOLDER = Path(__file__).resolve().parent
THREADS = 256
"""Threads of a block, as `primitives.cu` counts on."""

LINEAR = """
  const int M = x_shape[0], K = x_shape[1], N = w_shape[0];
  dflash::TILE tiles[RT];
  for (int r = 0; r < RT; ++r) {
    const size_t row = (size_t(blockIdx.x) * RT + r) * 16;
    FILL
  }
  dflash::project<RT, MT>(tiles, x, RESIDUAL, out, M, N, K, int(blockIdx.x) * RT * 16);
"""
SEVERAL = """
  const int M = x_shape[0], K = x_shape[1];
  int block = blockIdx.x;
  dflash::TILE tiles[1];
  PICKS
"""
PICK = """
  if (block < w_I_shape[0] / 16) {
    const size_t row = size_t(block) * 16;
    FILL
    dflash::project<1, MT>(tiles, x, nullptr, out_I, M, int(w_I_shape[0]), K, block * 16);
    return;
  }
  block -= w_I_shape[0] / 16;
"""
GATED = """
  const int M = x_shape[0], K = x_shape[1], N = w_shape[0];
  const size_t row = size_t(blockIdx.x) * 16;
  dflash::TILE tiles[2];
  FILL
  dflash::gated<MT>(tiles, x, out, M, N, K);
"""
GDN = """
  const dflash::Layer<In, Hk, Hv, Dk, Dv, KS> layer{qkv, window, taps, int(qkv_shape[1])};
  layer.run(a, b, a_log, dt_bias, state, y, state_out, window_out);
"""
PREPARE = """
  dflash::prepare<In, D, ROPE>(
      q, k, q_weight, k_weight, q_out, k_out, int(q_shape[0]), int(q_shape[1]), int(q_shape[2]),
      int(k_shape[1]), position[0], facts[0], facts[1], facts[2]);
"""
ATTEND = """
  dflash::Tile<In, D, R>::run(
      q, k, v, sums, peaks, weights, int(k_shape[1]), int(k_shape[2]), int(q_shape[2]),
      q_strides, k_strides, v_strides, facts[0], facts[1], facts[2], int(q_shape[1]));
"""
COMBINE = """
  dflash::combine<In, D>(
      sums, peaks, weights, GATE, out, int(sums_shape[0]), int(sums_shape[1]),
      int(sums_shape[2]), facts[3], facts[4], facts[5]);
"""
NORM = """
  dflash::gated_norm<In, D>(
      x, weight, gate, out, int(x_shape[0]) * int(x_shape[1]), eps[0]);
"""


def source_text(*names: str) -> str:
    """The .cu files of these names, one after another."""
    return "\n".join((FOLDER / f"{name}.cu").read_text(encoding="utf-8") for name in names)


def make(
    name: str,
    inputs: list[str],
    outputs: list[str],
    body: str,
    *files: str,
    text: str = "",
    contiguous: bool = True,
) -> Any:
    """An MLX kernel whose device functions are in `files` and `text`, whose body is `body`."""
    header = source_text("primitives", *files) + text
    digest = hashlib.sha256((header + body).encode()).hexdigest()[:8]
    build: Callable[..., Any] = mx.fast.cuda_kernel
    return build(
        f"dflash_{name}_{digest}",
        inputs,
        outputs,
        body,
        header=header,
        ensure_row_contiguous=contiguous,
    )


def _weights(suffix: str, quantized: bool) -> list[str]:
    names = [f"w{suffix}"]
    return [*names, f"scales{suffix}", f"biases{suffix}"] if quantized else names


def _fill(tile: str, suffix: str, quantized: bool) -> str:
    if not quantized:
        return f"{tile}.w = w{suffix} + row * K;"
    return (
        f"{tile}.w = w{suffix} + row * (K / 8);"
        f"{tile}.scales = scales{suffix} + row * (K / GROUP);"
        f"{tile}.biases = biases{suffix} + row * (K / GROUP);"
    )


@cache
def linear_kernel(quantized: bool, residual: bool) -> Any:
    """x, weights (and residual) -> out."""
    body = LINEAR.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    body = body.replace("FILL", _fill("tiles[r]", "", quantized))
    body = body.replace("RESIDUAL", "residual" if residual else "nullptr")
    inputs = ["x", *_weights("", quantized), *(["residual"] if residual else [])]
    name = f"linear{'_q4' if quantized else ''}{'_add' if residual else ''}"
    return make(name, inputs, ["out"], body, "skinny")


@cache
def several_kernel(quantized: bool, count: int) -> Any:
    """x and the weights of `count` layers -> their outputs, in one launch."""
    body = SEVERAL.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    picks, inputs = "", ["x"]
    for index in range(count):
        fill = _fill("tiles[0]", f"_{index}", quantized)
        picks += PICK.replace("FILL", fill).replace("_I", f"_{index}")
        inputs += _weights(f"_{index}", quantized)
    outputs = [f"out_{index}" for index in range(count)]
    name = f"several{'_q4' if quantized else ''}_{count}"
    return make(name, inputs, outputs, body.replace("PICKS", picks), "skinny")


@cache
def prepare_kernel() -> Any:
    """Norms and rotation of the heads that attention needs."""
    inputs = ["q", "k", "q_weight", "k_weight", "position", "facts"]
    return make("prepare", inputs, ["q_out", "k_out"], PREPARE, "attention")


@cache
def attention_kernel() -> Any:
    """One tile of keys for one key head: unscaled sums, maxima and weights."""
    outputs = ["sums", "peaks", "weights"]
    return make("attend", ["q", "k", "v", "facts"], outputs, ATTEND, "attention", contiguous=False)


@cache
def combine_kernel(gated: bool) -> Any:
    """The tiles of each row, added in order (and gated)."""
    body = COMBINE.replace("GATE", "gate" if gated else "(const In*)nullptr")
    inputs = ["sums", "peaks", "weights", "facts", *(["gate"] if gated else [])]
    return make(f"combine{'_gated' if gated else ''}", inputs, ["out"], body, "attention")


@cache
def gated_kernel(quantized: bool) -> Any:
    """x, gate weights, up weights -> silu(gate) * up."""
    body = GATED.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    fill = _fill("tiles[0]", "", quantized) + _fill("tiles[1]", "_up", quantized)
    inputs = ["x", *_weights("", quantized), *_weights("_up", quantized)]
    name = f"gated{'_q4' if quantized else ''}"
    return make(name, inputs, ["out"], body.replace("FILL", fill), "skinny")


@cache
def gdn_kernel() -> Any:
    """One Gated DeltaNet layer between its projections."""
    inputs = ["qkv", "window", "taps", "a", "b", "a_log", "dt_bias", "state"]
    return make("gdn", inputs, ["y", "state_out", "window_out"], GDN, "gdn")


@cache
def norm_kernel() -> Any:
    """x, weight, gate, eps -> gated norm."""
    return make("norm", ["x", "weight", "gate", "eps"], ["out"], NORM, "norm")
