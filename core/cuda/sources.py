"""The CUDA text beside this file, put together into kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .launch import Kernel

FOLDER = Path(__file__).resolve().parent

LINEAR = """
  dflash::TILE tiles[RT];
  for (int r = 0; r < RT; ++r) {
    const size_t row = (size_t(blockIdx.x) * RT + r) * 16;
    FILL
  }
  dflash::project<RT, MT>(tiles, x, RESIDUAL, out, M, N, K, int(blockIdx.x) * RT * 16);
"""
SEVERAL = """
  int left = blockIdx.x, block = 0, N = 0;
  dflash::bf16* out = nullptr;
  dflash::TILE tiles[1];
  PICKS
  dflash::project<1, MT>(tiles, x, nullptr, out, M, N, K, block * 16);
"""
PICK = """
  if (N == 0 && left < (N_I + 15) / 16) {
    block = left;
    N = N_I;
    out = out_I;
    const size_t row = size_t(block) * 16;
    FILL
  }
  left -= (N_I + 15) / 16;
"""
GATED = """
  const size_t row = size_t(blockIdx.x) * 16;
  dflash::TILE tiles[2];
  FILL
  dflash::gated<MT>(tiles, x, out, M, N, K);
"""
GDN = """
  const dflash::Layer<In, Hk, Hv, Dk, Dv, KS, EVERY> layer{qkv, window, taps, int(qkv_shape[1])};
  layer.run(a, b, a_log, dt_bias, state, y, states, windows);
"""
PREPARE = """
  dflash::prepare<In, D, ROPE>(
      q, k, v, q_weight, k_weight, q_out, k_out, v_out, q_shape[1], q_shape[2], q_shape[3],
      k_shape[2], position[0], q_eps, k_eps, log2_base);
"""
PREPARE_KEYS = """
  dflash::prepare<In, D, ROPE>(
      (const In*)nullptr, k, v, (const In*)nullptr, k_weight, (In*)nullptr, k_out, v_out,
      k_shape[1], 0, 0, k_shape[2], position[0], 0.0f, k_eps, log2_base);
"""
ATTEND = """
  dflash::Tile<In, D, R>::run(
      q, k, v, K_BLOCK, V_BLOCK, sums, peaks, weights, k_shape[1], k_shape[2], q_shape[1],
      q_shape[2], tiles, span[0], span[1], scale, CAUSAL, window);
"""
COMBINE = """
  dflash::combine<In, D>(
      sums, peaks, weights, GATE, out, sums_shape[0], sums_shape[1], sums_shape[2], rows, heads,
      stride);
"""
NORM = """
  dflash::gated_norm<In, D>(x, weight, gate, out, x_shape[1] * x_shape[2], eps);
"""


def source_text(*names: str) -> str:
    """The .cu files of these names, one after another."""
    return "\n".join((FOLDER / f"{name}.cu").read_text(encoding="utf-8") for name in names)


def make(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    body: str,
    *files: str,
    text: str = "",
) -> Kernel:
    """A kernel whose device functions are in `files` and `text`."""
    header = source_text("primitives", *files) + text
    return Kernel(name, tuple(inputs), tuple(outputs), body, header)


def weight_names(suffix: str, quantized: bool) -> list[str]:
    """A layer's inputs, as `kernels.layer_arrays` gives them."""
    names = [f"w{suffix}"]
    return [*names, f"scales{suffix}", f"biases{suffix}"] if quantized else names


def fill_tile(tile: str, suffix: str, quantized: bool, outputs: str = "N") -> str:
    """Statements that point `tile` at the weights from output `row` on, of so many."""
    last = f"{tile}.last = min({outputs} - int(row), 16) - 1;"
    if not quantized:
        return f"{last}{tile}.w = w{suffix} + row * K;"
    return (
        f"{last}"
        f"{tile}.w = w{suffix} + row * (K / 8);"
        f"{tile}.scales = scales{suffix} + row * (K / GROUP);"
        f"{tile}.biases = biases{suffix} + row * (K / GROUP);"
    )


@cache
def linear_kernel(quantized: bool, residual: bool) -> Kernel:
    """x, weights (and residual) -> out."""
    body = LINEAR.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    body = body.replace("FILL", fill_tile("tiles[r]", "", quantized))
    body = body.replace("RESIDUAL", "residual" if residual else "nullptr")
    inputs = ["x", *weight_names("", quantized), *(["residual"] if residual else [])]
    name = f"linear{'_q4' if quantized else ''}{'_add' if residual else ''}"
    return make(name, inputs, ["out"], body, "skinny")


@cache
def several_kernel(quantized: bool, count: int) -> Kernel:
    """x and the weights of `count` layers -> their outputs, in one launch."""
    body = SEVERAL.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    picks, inputs = "", ["x"]
    for index in range(count):
        fill = fill_tile("tiles[0]", f"_{index}", quantized)
        picks += PICK.replace("FILL", fill).replace("_I", f"_{index}")
        inputs += weight_names(f"_{index}", quantized)
    outputs = [f"out_{index}" for index in range(count)]
    name = f"several{'_q4' if quantized else ''}_{count}"
    return make(name, inputs, outputs, body.replace("PICKS", picks), "skinny")


@cache
def prepare_kernel() -> Kernel:
    """Norms and rotation of the heads that attention needs, and values put in its order."""
    inputs = ["q", "k", "v", "q_weight", "k_weight", "position"]
    return make("prepare", inputs, ["q_out", "k_out", "v_out"], PREPARE, "attention")


@cache
def prepare_keys_kernel() -> Kernel:
    """The same of keys and values alone."""
    inputs = ["k", "v", "k_weight", "position"]
    return make("prepare_keys", inputs, ["k_out", "v_out"], PREPARE_KEYS, "attention")


@cache
def attention_kernel(block: bool) -> Kernel:
    """One tile of keys for one key head: unscaled sums, maxima and weights.

    block: the last rows' keys and values stand in arrays of their own.
    """
    inputs = ["q", "k", "v", "span", *(["k_block", "v_block"] if block else [])]
    body = ATTEND
    for hole, name in (("K_BLOCK", "k_block"), ("V_BLOCK", "v_block")):
        body = body.replace(hole, name if block else "(const In*)nullptr")
    outputs = ["sums", "peaks", "weights"]
    return make(f"attend{'_block' if block else ''}", inputs, outputs, body, "attention")


@cache
def combine_kernel(gated: bool) -> Kernel:
    """The tiles of each row, added in order (and gated)."""
    body = COMBINE.replace("GATE", "gate" if gated else "(const In*)nullptr")
    inputs = ["sums", "peaks", "weights", *(["gate"] if gated else [])]
    return make(f"combine{'_gated' if gated else ''}", inputs, ["out"], body, "attention")


@cache
def gated_kernel(quantized: bool) -> Kernel:
    """x, gate weights, up weights -> silu(gate) * up."""
    body = GATED.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    fill = fill_tile("tiles[0]", "", quantized) + fill_tile("tiles[1]", "_up", quantized)
    inputs = ["x", *weight_names("", quantized), *weight_names("_up", quantized)]
    name = f"gated{'_q4' if quantized else ''}"
    return make(name, inputs, ["out"], body.replace("FILL", fill), "skinny")


@cache
def gdn_kernel() -> Kernel:
    """One Gated DeltaNet layer between its projections."""
    inputs = ["qkv", "window", "taps", "a", "b", "a_log", "dt_bias", "state"]
    return make("gdn", inputs, ["y", "states", "windows"], GDN, "gdn")


@cache
def norm_kernel() -> Kernel:
    """x, weight, gate -> gated norm."""
    return make("norm", ["x", "weight", "gate"], ["out"], NORM, "norm")
