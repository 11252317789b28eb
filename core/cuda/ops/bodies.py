"""The bodies of the steps: CUDA text that calls the functions of the .cu files beside this one."""

from __future__ import annotations

from functools import cache

from ..runtime.assemble import Body, source_file

ROWS = {
    "": "const auto rows = dflash::given(x);",
    "_normed": "const auto rows = dflash::normed(x, norm, eps, held.factors);",
    "_gate_normed": """
  const auto rows = dflash::gate_normed<D>(x, norm, gate, K, eps, held.factors);
""",
}
"""How a projection reads its rows, by kind (`projections.Feed`)."""
FACTORS = {"": "1", "_normed": "MT * 8", "_gate_normed": "MT * 8 * HEADS"}
"""What it keeps of them in shared memory, by kind."""
LINEAR = """
  dflash::TILE tiles[RT];
  for (int r = 0; r < RT; ++r) {
    const size_t row = (size_t(block) * RT + r) * 16;
    FILL
  }
  WARM
  ROWS
  dflash::project<RT, MT>(
      tiles, rows, RESIDUAL, out, M, N, K, block * RT * 16, first, held.block);
"""
SEVERAL = """
  int left = block, tile = 0, N = 0;
  dflash::bf16* out = nullptr;
  dflash::TILE tiles[1];
  PICKS
  WARM
  ROWS
  dflash::project<1, MT>(
      tiles, rows, (const dflash::bf16*)nullptr, out, M, N, K, tile * 16, first, held.block);
"""
PICK = """
  if (N == 0 && left < (N_I + 15) / 16) {
    tile = left;
    N = N_I;
    out = out_I;
    const size_t row = size_t(tile) * 16;
    FILL
  }
  left -= (N_I + 15) / 16;
"""
GATED = """
  const size_t row = size_t(block) * 16;
  dflash::TILE tiles[2];
  FILL
  WARM
  ROWS
  dflash::gated<MT>(tiles, rows, out, M, N, K, block * 16, first, held.block);
"""
GDN = """
  using Layer = dflash::Layer<In, Hk, Hv, Dk, Dv, KS, EVERY>;
  const int keep = place[1];
  const Layer layer{qkv, window + Layer::window_at(keep), taps, M};
  layer.run(
      a, b, a_log, dt_bias, state + Layer::state_at(keep), y, states, windows, block, held);
"""
NORM = "dflash::gated_norm<In, D>(x, weight, gate, out, count, eps, block);"
PREPARE = """
  dflash::prepare<In, D, ROPE>(
      q, k, v, q_weight, k_weight, q_out, k_out, v_out, M, H, S, HK, HK, position[0], q_eps, k_eps,
      log2_base, block);
"""
PREPARE_KEYS = """
  dflash::prepare<In, D, ROPE>(
      (const In*)nullptr, k, v, (const In*)nullptr, k_weight, (In*)nullptr, k_out, v_out,
      M, 0, 0, HK, each, position[0], 0.0f, k_eps, log2_base, block);
"""
ATTEND = """
  dflash::Tile<In, D, R>::run(
      q, k, v, K_BLOCK, V_BLOCK, sums, peaks, weights, HK, capacity, H, M, tiles, span[0],
      span[1], scale, CAUSAL, window, block, held);
"""
COMBINE = """
  dflash::combine<In, D>(
      sums, peaks, weights, GATE, out, HK, tiles, R, M, H, stride, block);
"""


def fill_tile(tile: str, suffix: str, quantized: bool, outputs: str = "N") -> str:
    """Statements that point `tile` at the weights from output `row` on, of so many."""
    last = f"{tile}.last = min({outputs} - int(row), 16) - 1;"
    return last + point_tile(tile, suffix, quantized)


def point_tile(tile: str, suffix: str, quantized: bool) -> str:
    """The same without saying which rows behind it are the tile's."""
    if not quantized:
        return f"{tile}.w = w{suffix} + row * K;"
    return (
        f"{tile}.w = w{suffix} + row * (K / 8);"
        f"{tile}.scales = scales{suffix} + row * (K / GROUP);"
        f"{tile}.biases = biases{suffix} + row * (K / GROUP);"
    )


def project(
    text: str, quantized: bool, kind: str, tiles: str, which: str = "dflash::Neighbours"
) -> Body:
    """A projection of `tiles` tiles a piece: TILE and ROWS in its text filled in. which: the rows
    of the weights that a tile has."""
    text = text.replace(
        "TILE", f"Quantized<GROUP, {which}>" if quantized else f"Dense<DEPTH, {which}>"
    )
    shared = f"dflash::Held<{tiles}, MT, {FACTORS[kind]}>"
    warm = "dflash::warm_tiles(tiles, K);"
    return Body(text.replace("ROWS", ROWS[kind]), PROJECTION_FILES, shared, warm)


PROJECTION_FILES = (source_file("rows"), source_file("skinny"))


@cache
def linear(quantized: bool, residual: bool, kind: str) -> Body:
    """Rows, weights (and residual) -> out."""
    text = LINEAR.replace("FILL", fill_tile("tiles[r]", "", quantized))
    text = text.replace("RESIDUAL", "residual" if residual else "(const dflash::bf16*)nullptr")
    return project(text, quantized, kind, "RT")


@cache
def several(quantized: bool, count: int, kind: str) -> Body:
    """Rows and the weights of `count` layers -> their outputs."""
    picks = ""
    for index in range(count):
        fill = fill_tile("tiles[0]", f"_{index}", quantized)
        picks += PICK.replace("FILL", fill).replace("_I", f"_{index}")
    return project(SEVERAL.replace("PICKS", picks), quantized, kind, "1")


@cache
def gated(quantized: bool, kind: str) -> Body:
    """Rows, gate weights, up weights -> silu(gate) * up."""
    fill = fill_tile("tiles[0]", "", quantized) + fill_tile("tiles[1]", "_up", quantized)
    return project(GATED.replace("FILL", fill), quantized, kind, "2")


@cache
def recurrence() -> Body:
    """One Gated DeltaNet layer between its projections."""
    return Body(GDN, (source_file("gdn"),), "dflash::Rows<Dk, 16>")


@cache
def gated_norm() -> Body:
    """x, weight, gate -> gated norm."""
    return Body(NORM, (source_file("norm"),))


@cache
def prepare(queries: bool) -> Body:
    """Norms and rotation of the heads that attention needs, and values put in its order; without
    queries those of keys and values alone."""
    return Body(PREPARE if queries else PREPARE_KEYS, (source_file("attention"),))


@cache
def attend(block: bool) -> Body:
    """One tile of keys for one key head: unscaled sums, maxima and weights.

    block: the last rows' keys and values stand in arrays of their own.
    """
    text = ATTEND
    for hole, name in (("K_BLOCK", "k_block"), ("V_BLOCK", "v_block")):
        text = text.replace(hole, name if block else "(const In*)nullptr")
    return Body(text, (source_file("attention"),), "dflash::Tile<In, D, R>::Held")


@cache
def combine(is_gated: bool) -> Body:
    """The tiles of each row, added in order (and gated)."""
    text = COMBINE.replace("GATE", "gate" if is_gated else "(const In*)nullptr")
    return Body(text, (source_file("attention"),))
