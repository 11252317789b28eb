"""4-bit projections in a launch of their own: how k is cut, and the steps (`fourbit.cu`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..runtime.assemble import Body, source_file
from ..runtime.driver import multiprocessors, shared_memory
from ..runtime.launch import THREADS
from ..runtime.steps import Given, Step
from .bodies import ROWS
from .projections import Feed, row_tiles, weights
from .reference_ops import split_heads

WARPS = 8
PIECE = 128
"""k of a warp's step."""
TILE = 16
"""Outputs."""
FILES = tuple(source_file(name) for name in ("rows", "slices", "fourbit"))
COUNTS = 64
"""Numbers at least, since MLX keeps smaller arrays in memory that it shares with the host."""
RUN = """
  ROWS
  const auto at = [&](int tile) -> dflash::FourBits { AT };
  const auto finish = [&](int item, int output, int row, const float (&y)[R]) { FINISH };
  dflash::Narrow<GROUP, MT, K, SLICES, R, HALVES, FACTORS>::run(
      held, rows, M, items, block, blocks, PARTIAL, at, finish);
"""
WEIGHTS = """{
    const size_t row = size_t(TILE) * 16;
    return {w_I + row * (K / 8), scales_I + row * (K / GROUP), biases_I + row * (K / GROUP),
        min(N_I - int(row), 16) - 1};
  }
"""
PUT = """{
    const int column = TILE * 16 + output;
    if (column >= N_I) return;
    const size_t place = size_t(row) * N_I + column;
    VALUE
  }
"""
GATED = """
    const float gate = float(dflash::bf16(y[0])), up = float(dflash::bf16(y[1]));
    const float sigmoid = float(dflash::bf16(1.0f / (1.0f + expf(-gate))));
    out[place] = dflash::bf16(float(dflash::bf16(gate * sigmoid)) * up);
"""


def takes(module: Any) -> bool:
    """Whether a layer that `fits_linear` is one of these: whole pieces, whole words of scales."""
    if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        return False
    width = int(module.weight.shape[1]) * 8
    return bool(width % max(PIECE, 2 * module.group_size) == 0)


@dataclass(frozen=True)
class RowLayout:
    """How the rows of one projection lie in shared memory. width: k; group: of the scales; slices:
    of k, each of another block; tiles: of 8 rows; halves: of a block; factors: numbers that the
    rows' norm needs."""

    width: int
    group: int
    slices: int
    tiles: int
    halves: int
    factors: int

    @property
    def room(self) -> int:
        """Bytes, as `Narrow::Held` has them."""
        part = self.width // self.slices
        lines = -(-part * 2 // self.group // 16)
        scales = 2 * 2 * TILE * (lines + 1 - lines % 2) * 16
        ring = WARPS * -(-part // (PIECE * WARPS)) * 1024
        half = ring + scales + WARPS * TILE * self.tiles * 8 * 4 + 16
        rows = self.tiles * part * 16 + self.tiles * part // self.group * 32
        return rows + self.halves * half + -(-self.factors * 4 // 16) * 16


def cut(rows: Feed, group: int) -> RowLayout:
    """As few slices as 16 rows leave room for, whatever the rows are now: the order of addition."""
    tiles = row_tiles(rows.count)
    pieces = rows.width // max(PIECE, 2 * group)
    slices = next(
        n
        for n in range(1, pieces + 1)
        if pieces % n == 0 and (n == pieces or _cut(rows, group, n, 2, 1).room <= shared_memory())
    )
    two = _cut(rows, group, slices, tiles, 2)
    return two if two.room <= shared_memory() else _cut(rows, group, slices, tiles, 1)


def _cut(rows: Feed, group: int, slices: int, tiles: int, halves: int) -> RowLayout:
    factors = {
        "": 1,
        "_normed": 16 * (1 + -(-rows.width // 256)),
        "_gate_normed": 8 * tiles * rows.constants.get("HEADS", 0),
    }
    return RowLayout(rows.width, group, slices, tiles, halves, factors[rows.kind])


@cache
def _body(kind: str, at: str, finish: str, shape: RowLayout, each: int) -> Body:
    """each: tiles of an item, whose sums `finish` is given together."""
    partial = "partial, (unsigned*)counts" if shape.slices > 1 else "nullptr, nullptr"
    text = RUN.replace("ROWS", ROWS[kind]).replace("AT", at).replace("FINISH", finish)
    text = text.replace("PARTIAL", partial).replace("[R]", f"[{each}]")
    sizes = f"GROUP, MT, K, SLICES, {each}, HALVES, {shape.factors}"
    text = text.replace("GROUP, MT, K, SLICES, R, HALVES, FACTORS", sizes)
    held = f"dflash::Narrow<{sizes}>::Held"
    return Body(text, FILES, held, room=shape.room, threads=THREADS * shape.halves)


@cache
def _counts(owner: int, items: int) -> mx.array:
    """Zeros that a launch leaves as it found them. owner: of the weights, so that no two launches
    that could run at a time share them."""
    zeros = mx.zeros((max(items, COUNTS),), dtype=mx.uint32)
    mx.eval(zeros)
    return zeros


@dataclass(frozen=True)
class _Text:
    """What of a step depends on its kind. scalars: by name; each: tiles of an item."""

    at: str
    finish: str
    items: int
    scalars: Mapping[str, int]
    each: int = 1


def _step(
    name: str,
    rows: Feed,
    modules: Sequence[Any],
    text: _Text,
    inputs: Mapping[str, Given],
    outputs: Mapping[str, tuple[tuple[int, ...], mx.Dtype]],
) -> Step:
    group = modules[0].group_size
    shape = cut(rows, group)
    made = dict(outputs)
    given = {**rows.inputs, **inputs}
    if shape.slices > 1:
        given["counts"] = _counts(id(modules[0]), text.items)
        numbers = text.items * shape.slices * text.each * THREADS
        made["partial"] = ((numbers,), mx.float32)
    lists = max(1, min(-(-text.items // shape.halves), multiprocessors() // shape.slices))
    constants = {
        "GROUP": group,
        "MT": shape.tiles,
        "K": rows.width,
        "SLICES": shape.slices,
        "HALVES": shape.halves,
        **rows.constants,
    }
    numbers_given = {"M": rows.count, "items": text.items, **text.scalars, **rows.scalars}
    body = _body(rows.kind, text.at, text.finish, shape, text.each)
    return Step(name, body, lists * shape.slices, given, made, constants, numbers_given)


def linear_step(name: str, module: Any, rows: Feed, residual: Given | None = None) -> Step:
    """As `projections.linear_step`; only its first output counts."""
    outputs = module.weight.shape[0]
    value = "out[place] = dflash::bf16(y[0]);"
    extra: dict[str, Given] = {}
    if residual is not None:
        value = "out[place] = float(residual[place]) + float(dflash::bf16(y[0]));"
        extra = {"residual": residual}
    at, finish = (text.replace("_I", "") for text in (WEIGHTS, PUT.replace("VALUE", value)))
    at, finish = at.replace("TILE", "tile"), finish.replace("TILE", "item")
    text = _Text(at, finish, -(-outputs // TILE), {"N": outputs})
    made = {"out": ((1, rows.count, outputs), mx.bfloat16)}
    inputs = {**weights(module)[0], **extra}
    return _step(name, rows, (module,), text, inputs, made)


def several_step(
    name: str, modules: Sequence[Any], rows: Feed, heads: Sequence[int] | None = None
) -> Step:
    """As `projections.several_step`; only as many outputs count as there are modules."""
    counts = [module.weight.shape[0] for module in modules]
    at, finish = "int left = tile;", "int left = item;"
    inputs: dict[str, Given] = {}
    for index, module in enumerate(modules):
        inputs |= weights(module, f"_{index}")[0]
        put = PUT.replace("VALUE", "out_I[place] = dflash::bf16(y[0]); return;")
        for_one = f"if (left < (N_{index} + 15) / 16) "
        after = f" left -= (N_{index} + 15) / 16;"
        mine = [text.replace("TILE", "left").replace("_I", f"_{index}") for text in (WEIGHTS, put)]
        at += for_one + mine[0] + after
        finish += for_one + mine[1] + after
    at += "return {};"
    shapes = [split_heads((1, rows.count, rows.width), n, i, heads) for i, n in enumerate(counts)]
    scalars = {f"N_{index}": count for index, count in enumerate(counts)}
    text = _Text(at, finish, sum(-(-count // TILE) for count in counts), scalars)
    made = {f"out_{index}": (shape, mx.bfloat16) for index, shape in enumerate(shapes)}
    return _step(name, rows, modules, text, inputs, made)


def gated_step(name: str, gate: Any, up: Any, rows: Feed) -> Step:
    """As `projections.gated_step`; only its first output counts."""
    outputs = gate.weight.shape[0]
    halves = [
        WEIGHTS.replace("_I", suffix).replace(f"N{suffix}", "N").replace("TILE", "(tile / 2)")
        for suffix in ("", "_up")
    ]
    at = f"if (tile % 2 == 0) {halves[0]} else {halves[1]}"
    finish = PUT.replace("VALUE", GATED).replace("_I", "").replace("TILE", "item")
    text = _Text(at, finish, -(-outputs // TILE), {"N": outputs}, each=2)
    inputs = {**weights(gate)[0], **weights(up, "_up")[0]}
    made = {"out": ((1, rows.count, outputs), mx.bfloat16)}
    return _step(name, rows, (gate, up), text, inputs, made)
