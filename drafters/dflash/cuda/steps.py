"""What a draft does between its projections, as steps (`draft.cu`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ....core.cuda.ops.projections import weights
from ....core.cuda.runtime.launch import THREADS
from ....core.cuda.runtime.steps import Body, Given, Step, run_step
from ..layers import CandidateSelector, GroupedDynamicConv

TEXT = Path(__file__).resolve().parent / "draft.cu"
TOP = 16
"""Candidates a row that the selector kernels are written for: published drafters have 16."""
HELD = 32
"""Logits a thread holds while it looks for the largest."""

EMBED = "dflash::embed(w, names, out, K, scale, block);"
EMBED_PACKED = "dflash::embed<GROUP>(w, scales, biases, names, out, K, scale, block);"
ROW_NORM = "dflash::row_norm<In>(x + size_t(SKIP) * K, weight, out, K, eps, block, held);"
CONVOLVE = """
  dflash::convolve<In, Out>(
      x, deltas, base, RESIDUAL, out, M, K, TAPS, G, PLANE, stride, block);
"""
TOP_FIRST = """
  dflash::top<In, 16, PER>(logits, nullptr, values, ids, columns, parts, block, held);
"""
TOP_MERGE = "dflash::top<float, 16, PER>(some, names, values, ids, columns, 1, block, held);"
WALK = """
  dflash::walk<In, 16>(
      unary, candidates, projected, predecessors, successors, anchor, out, M, R, held);
"""


@cache
def _body(text: str, shared: str = "dflash::Nothing") -> Body:
    return Body(text, (TEXT,), shared)


def embed_step(name: str, table: Any, names: Given, rows: int, scale: float) -> Step:
    """out (1, rows, K) in float32: rows of an embedding that `fits_linear` takes, times scale.
    names: int32 ids."""
    arrays, constants = weights(table)
    width = (table.scales.shape[1] * table.group_size) if constants else table.weight.shape[1]
    return Step(
        name,
        _body(EMBED_PACKED if constants else EMBED),
        rows,
        {**arrays, "names": names},
        {"out": ((1, rows, width), mx.float32)},
        constants,
        {"K": width, "scale": float(scale)},
    )


def row_norm_step(name: str, x: Given, norm: Any, rows: int, skip: int = 0) -> Step:
    """out (1, rows, K): the RMS norm of float32 rows but the first `skip`, in the weights' dtype
    from here on."""
    width = norm.weight.shape[0]
    return Step(
        name,
        _body(ROW_NORM, "dflash::HeldSums"),
        rows,
        {"x": x, "weight": norm.weight},
        {"out": ((1, rows, width), norm.weight.dtype)},
        {"In": norm.weight.dtype, "SKIP": skip},
        {"K": width, "eps": float(norm.eps)},
    )


def row_norm(residual: mx.array, norm: Any) -> mx.array:
    """The norm of every row of the float32 residual (1, T, D)."""
    return run_step(row_norm_step("row_norm", residual, norm, residual.shape[1]))[0]


def convolve(
    conv: GroupedDynamicConv,
    x: mx.array,
    deltas: mx.array,
    plane: int,
    residual: mx.array | None = None,
) -> mx.array:
    """The dynamic convolution of x (1, T, D) with one plane's deltas (1, T, K * G); with a
    residual, residual + it, in float32."""
    _, rows, width = x.shape
    out_dtype = x.dtype if residual is None else mx.float32
    extra = {} if residual is None else {"residual": residual}
    text = CONVOLVE.replace("RESIDUAL", "nullptr" if residual is None else "residual")
    return run_step(
        Step(
            "conv",
            _body(text),
            -(-rows * width // THREADS),
            {"x": x, "deltas": deltas, "base": conv.base_kernel, **extra},
            {"out": ((1, rows, width), out_dtype)},
            {"In": x.dtype, "Out": out_dtype, "G": conv.groups, "PLANE": plane},
            {"M": rows, "K": width, "TAPS": conv.kernel_size, "stride": deltas.shape[2]},
        )
    )[0]


def top_steps(logits: Given, rows: int, vocab: int, dtype: mx.Dtype) -> list[Step]:
    """values (T, 16) float32 and ids (T, 16) int32 of the last step: the largest logits
    (1, T, V), largest first."""
    parts = -(-vocab // (HELD * THREADS))
    found = {"values": ((rows, parts * TOP), mx.float32), "ids": ((rows, parts * TOP), mx.int32)}
    first = Step(
        "top",
        _body(TOP_FIRST, "dflash::HeldBest<In, 16>"),
        rows * parts,
        {"logits": logits},
        found,
        {"In": dtype, "PER": HELD},
        {"columns": vocab, "parts": parts},
    )
    if parts == 1:
        return [first]
    merge = Step(
        "merge",
        _body(TOP_MERGE, "dflash::HeldBest<float, 16>"),
        rows,
        {"some": "top.values", "names": "top.ids"},
        {"values": ((rows, TOP), mx.float32), "ids": ((rows, TOP), mx.int32)},
        {"PER": -(-parts * TOP // THREADS)},
        {"columns": parts * TOP},
    )
    return [first, merge]


def walk_steps(
    selector: CandidateSelector, projected: Given, tops: Sequence[Step], anchor: Given
) -> list[Step]:
    """The selector's path out (T,) int32 of the step "walk", behind `tops` (top_steps): projected
    (1, T, rank) bfloat16, anchor (1,) int32."""
    rows = tops[-1].outputs["ids"][0][0]
    walk = Step(
        "walk",
        _body(WALK, "dflash::HeldPath<16>"),
        1,
        {
            "unary": f"{tops[-1].name}.values",
            "candidates": f"{tops[-1].name}.ids",
            "projected": projected,
            "predecessors": selector.predecessor_codebook,
            "successors": selector.successor_codebook,
            "anchor": anchor,
        },
        {"out": ((rows,), mx.int32)},
        {"In": mx.bfloat16},
        {"M": rows, "R": selector.predecessor_codebook.shape[1]},
    )
    return [*tops, walk]
