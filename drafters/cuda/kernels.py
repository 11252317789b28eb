"""What a DFlash2 draft does between its projections, one launch each (`draft.cu`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...core.cuda.assemble import PRIMITIVES
from ...core.cuda.launch import THREADS, Kernel
from ..layers import CandidateSelector, GroupedDynamicConv

TEXT = Path(__file__).resolve().parent / "draft.cu"
TOP = 16
"""Candidates a row that the selector kernels are written for: published drafters have 16."""
HELD = 32
"""Logits a thread holds while it looks for the largest."""

ROW_NORM = "dflash::row_norm<In>(x, weight, out, x_shape[2], eps);"
CONVOLVE = """
  dflash::convolve<In, Out>(
      x, deltas, base, RESIDUAL, out, x_shape[1], x_shape[2], base_shape[1], G,
      PLANE, deltas_shape[2]);
"""
TOP_FIRST = """
  dflash::top<In, 16, PER>(
      logits, nullptr, values, ids, logits_shape[2], int(gridDim.x) / logits_shape[1]);
"""
TOP_MERGE = "dflash::top<float, 16, PER>(some, names, values, ids, some_shape[1], 1);"
WALK = """
  dflash::walk<In, 16>(
      unary, candidates, projected, predecessors, successors, anchor, out,
      projected_shape[1], projected_shape[2]);
"""


@cache
def _kernel(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], body: str) -> Kernel:
    files = (PRIMITIVES, TEXT)
    header = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return Kernel(name, inputs, outputs, body, header)


def row_norm(residual: mx.array, norm: Any) -> mx.array:
    """RMS norm of the float32 residual (1, T, D), in the weights' dtype from here on."""
    _, rows, width = residual.shape
    dtype = norm.weight.dtype
    kernel = _kernel("row_norm", ("x", "weight"), ("out",), ROW_NORM)
    (out,) = kernel(
        inputs=[residual, norm.weight],
        template=[("In", dtype)],
        scalars={"eps": float(norm.eps)},
        blocks=rows,
        output_shapes=[(1, rows, width)],
        output_dtypes=[dtype],
    )
    return out


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
    name, extra = ("conv", ()) if residual is None else ("conv_add", ("residual",))
    body = CONVOLVE.replace("RESIDUAL", "nullptr" if residual is None else "residual")
    kernel = _kernel(name, ("x", "deltas", "base", *extra), ("out",), body)
    (out,) = kernel(
        inputs=[x, deltas, conv.base_kernel, *([] if residual is None else [residual])],
        template=[("In", x.dtype), ("Out", out_dtype), ("G", conv.groups), ("PLANE", plane)],
        blocks=-(-rows * width // THREADS),
        output_shapes=[(1, rows, width)],
        output_dtypes=[out_dtype],
    )
    return out


def top_candidates(logits: mx.array) -> tuple[mx.array, mx.array]:
    """logits (1, T, V) -> (logits (T, 16) float32, ids (T, 16) int32), the largest first."""
    _, rows, vocab = logits.shape
    parts = -(-vocab // (HELD * THREADS))
    first = _kernel("top_first", ("logits",), ("values", "ids"), TOP_FIRST)
    some, names = first(
        inputs=[logits],
        template=[("In", logits.dtype), ("PER", HELD)],
        blocks=rows * parts,
        output_shapes=[(rows, parts * TOP)] * 2,
        output_dtypes=[mx.float32, mx.int32],
    )
    if parts == 1:
        return some, names
    merge = _kernel("top_merge", ("some", "names"), ("values", "ids"), TOP_MERGE)
    values, ids = merge(
        inputs=[some, names],
        template=[("PER", -(-parts * TOP // THREADS))],
        blocks=rows,
        output_shapes=[(rows, TOP)] * 2,
        output_dtypes=[mx.float32, mx.int32],
    )
    return values, ids


def walk(
    selector: CandidateSelector, projected: mx.array, logits: mx.array, anchor: mx.array
) -> mx.array:
    """The selector's path: projected (1, T, rank), logits (1, T, V), anchor (1,) -> ids (T,)."""
    unary, candidates = top_candidates(logits)
    names = ("unary", "candidates", "projected", "predecessors", "successors", "anchor")
    (out,) = _kernel("walk", names, ("out",), WALK)(
        inputs=[
            unary,
            candidates,
            projected,
            selector.predecessor_codebook,
            selector.successor_codebook,
            anchor.astype(mx.int32),
        ],
        template=[("In", projected.dtype)],
        blocks=1,
        output_shapes=[(projected.shape[1],)],
        output_dtypes=[mx.int32],
    )
    return out
