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
  ROWS
  dflash::project<RT, MT>(tiles, rows, RESIDUAL, out, M, N, K, int(blockIdx.x) * RT * 16);
"""
SEVERAL = """
  int left = blockIdx.x, block = 0, N = 0;
  dflash::bf16* out = nullptr;
  dflash::TILE tiles[1];
  PICKS
  ROWS
  dflash::project<1, MT>(tiles, rows, nullptr, out, M, N, K, block * 16);
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
  ROWS
  dflash::gated<MT>(tiles, rows, out, M, N, K);
"""
ROWS = {
    "": "const auto rows = dflash::given(x);",
    "_normed": """
  __shared__ float factors[MT * 8];
  const auto rows = dflash::normed(x, norm, eps, factors);
""",
    "_gate_normed": """
  __shared__ float factors[MT * 8 * HEADS];
  const auto rows = dflash::gate_normed<D>(x, norm, gate, K, eps, factors);
""",
}
"""How a projection reads its rows, by the suffix of the kernel's name."""
ROW_INPUTS = {"": ["x"], "_normed": ["x", "norm"], "_gate_normed": ["x", "norm", "gate"]}
GDN = """
  using Layer = dflash::Layer<In, Hk, Hv, Dk, Dv, KS, EVERY>;
  const int keep = place[1];
  const Layer layer{qkv, window + Layer::window_at(keep), taps, int(qkv_shape[1])};
  layer.run(a, b, a_log, dt_bias, state + Layer::state_at(keep), y, states, windows);
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


def project(
    name: str,
    quantized: bool,
    rows: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    body: str,
    text: str = "",
) -> Kernel:
    """A kernel around a projection: the holes TILE and ROWS of `body` filled, and the inputs of
    the rows before the others. rows: a key of ROWS."""
    body = body.replace("TILE", "Quantized<GROUP>" if quantized else "Dense")
    body = body.replace("ROWS", ROWS[rows])
    name = f"{name}{'_q4' if quantized else ''}{rows}"
    return make(name, [*ROW_INPUTS[rows], *inputs], outputs, body, "rows", "skinny", text=text)


@cache
def linear_kernel(quantized: bool, residual: bool, rows: str) -> Kernel:
    """Rows, weights (and residual) -> out."""
    body = LINEAR.replace("FILL", fill_tile("tiles[r]", "", quantized))
    body = body.replace("RESIDUAL", "residual" if residual else "nullptr")
    inputs = [*weight_names("", quantized), *(["residual"] if residual else [])]
    return project(f"linear{'_add' if residual else ''}", quantized, rows, inputs, ["out"], body)


@cache
def several_kernel(quantized: bool, count: int, rows: str) -> Kernel:
    """Rows and the weights of `count` layers -> their outputs, in one launch."""
    picks: str = ""
    inputs: list[str] = []
    for index in range(count):
        fill = fill_tile("tiles[0]", f"_{index}", quantized)
        picks += PICK.replace("FILL", fill).replace("_I", f"_{index}")
        inputs += weight_names(f"_{index}", quantized)
    outputs = [f"out_{index}" for index in range(count)]
    body = SEVERAL.replace("PICKS", picks)
    return project(f"several_{count}", quantized, rows, inputs, outputs, body)


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
def gated_kernel(quantized: bool, rows: str) -> Kernel:
    """Rows, gate weights, up weights -> silu(gate) * up."""
    fill = fill_tile("tiles[0]", "", quantized) + fill_tile("tiles[1]", "_up", quantized)
    inputs = [*weight_names("", quantized), *weight_names("_up", quantized)]
    return project("gated", quantized, rows, inputs, ["out"], GATED.replace("FILL", fill))


@cache
def gdn_kernel() -> Kernel:
    """One Gated DeltaNet layer between its projections."""
    inputs = ["qkv", "window", "taps", "a", "b", "a_log", "dt_bias", "state", "place"]
    return make("gdn", inputs, ["y", "states", "windows"], GDN, "gdn")


@cache
def norm_kernel() -> Kernel:
    """x, weight, gate -> gated norm."""
    return make("norm", ["x", "weight", "gate"], ["out"], NORM, "norm")
