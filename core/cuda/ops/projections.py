"""Projections as steps: which layers the kernels take, how their rows are read, and the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..runtime.steps import Given, Step
from . import bodies
from .reference_ops import normed, split_heads

MAX_ROWS = 16
"""Rows of the narrow matmul; wider ones are MLX's."""
WIDE_BLOCKS = 264
"""Two blocks for each of Hopper's multiprocessors: with fewer, a block takes one tile of 16."""
GATED_HEADS = (32, 64, 128, 256)
"""Sizes of a GDN head whose gated norm a projection can take over; a warp has 32 lanes."""
MAX_GATED_HEADS = 64
"""Heads whose factors a block holds."""


def fits_linear(module: Any, rows: int) -> bool:
    """True for a bfloat16 layer without bias, dense or affine 4-bit, whose inputs divide evenly."""
    if rows > MAX_ROWS or "bias" in module:
        return False
    if isinstance(module, nn.Linear | nn.Embedding):
        return bool(module.weight.dtype == mx.bfloat16 and module.weight.shape[1] % 32 == 0)
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        affine = module.bits == 4 and module.mode == "affine" and module.group_size in (32, 64, 128)
        return bool(
            affine and module.scales.dtype == mx.bfloat16 and module.weight.shape[1] % 16 == 0
        )
    return False


def fits_norm(norm: Any, dtype: mx.Dtype) -> bool:
    """True for an RMSNorm in bfloat16, of bfloat16 or float32 rows."""
    bf16 = norm.weight.dtype == mx.bfloat16
    return type(norm) is nn.RMSNorm and bf16 and dtype in (mx.bfloat16, mx.float32)


def fits_gate_norm(norm: Any, heads: int, dim: int) -> bool:
    """True for the output norm of GDN heads that a projection can take over."""
    few = dim in GATED_HEADS and heads <= MAX_GATED_HEADS
    return bool(few and norm.weight.dtype == mx.bfloat16)


def fit_together(modules: Sequence[Any], rows: int) -> bool:
    """True for layers of one kind, dense or quantized alike, that one step can have."""
    if not all(fits_linear(module, rows) for module in modules):
        return False
    return len({tuple(weights(module)[1].items()) for module in modules}) == 1


def fits_pair(gate: Any, up: Any, rows: int) -> bool:
    """True for two layers of one kind and size."""
    same = type(gate) is type(up) and gate.weight.shape == up.weight.shape
    return same and fit_together((gate, up), rows)


@dataclass(frozen=True)
class Feed:
    """The rows of a projection: `count` of `width` numbers, and how a kernel reads them.

    kind: a key of `bodies.ROWS`; inputs, scalars and constants: what that kind takes.
    """

    kind: str
    count: int
    width: int
    inputs: Mapping[str, Given]
    scalars: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)


def feed(x: mx.array, norm: Any) -> Feed | None:
    """How a projection reads x (1, T, K) through `norm`; None where no kernel does."""
    count, width = x.shape[-2:]
    if norm is not None and fits_norm(norm, x.dtype):
        return feed_normed(x, norm, count, width)
    x = normed(norm, x)
    return Feed("", count, width, {"x": x}) if x.dtype == mx.bfloat16 else None


def feed_normed(x: Given, norm: Any, count: int, width: int) -> Feed:
    """Rows that go through `norm` on the way."""
    inputs = {"x": x, "norm": norm.weight}
    return Feed("_normed", count, width, inputs, {"eps": float(norm.eps)})


def feed_gate_normed(y: Given, norm: Any, gate: Given, count: int, heads: int, dim: int) -> Feed:
    """Rows of GDN heads through their output norm, gated."""
    inputs = {"x": y, "norm": norm.weight, "gate": gate}
    constants = {"D": dim, "HEADS": heads}
    return Feed("_gate_normed", count, heads * dim, inputs, {"eps": float(norm.eps)}, constants)


def weights(module: Any, suffix: str = "") -> tuple[dict[str, mx.array], dict[str, int]]:
    """A layer's arrays by the names that `bodies.fill_tile` has, and its constants."""
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        names = {"w": module.weight, "scales": module.scales, "biases": module.biases}
        arrays = {f"{name}{suffix}": array for name, array in names.items()}
        return arrays, {"GROUP": module.group_size}
    return {f"w{suffix}": module.weight}, {}


def linear_step(
    name: str,
    module: Any,
    rows: Feed,
    residual: Given | None = None,
    dtype: mx.Dtype = mx.bfloat16,
) -> Step:
    """out (1, T, N): the projection, and the residual where there is one, in its dtype."""
    arrays, constants = weights(module)
    outputs = module.weight.shape[0]
    tiles = 2 if outputs % 32 == 0 and outputs // 32 >= WIDE_BLOCKS else 1
    extra = {} if residual is None else {"residual": residual}
    return Step(
        name,
        bodies.linear(bool(constants), residual is not None, rows.kind),
        -(-outputs // (16 * tiles)),
        {**rows.inputs, **arrays, **extra},
        {"out": ((1, rows.count, outputs), dtype)},
        {"RT": tiles, "MT": row_tiles(rows.count), **constants, **rows.constants},
        {"M": rows.count, "K": rows.width, "N": outputs, **rows.scalars},
    )


def several_step(
    name: str, modules: Sequence[Any], rows: Feed, heads: Sequence[int] | None = None
) -> Step:
    """out_0, out_1 ...: every layer's output, in as many heads as `heads` says, 0 for (1, T, N)."""
    arrays: dict[str, Given] = dict(rows.inputs)
    for index, module in enumerate(modules):
        arrays |= weights(module, f"_{index}")[0]
    constants = weights(modules[0])[1]
    counts = [module.weight.shape[0] for module in modules]
    shapes = [split_heads((1, rows.count, rows.width), n, i, heads) for i, n in enumerate(counts)]
    return Step(
        name,
        bodies.several(bool(constants), len(modules), rows.kind),
        sum(-(-count // 16) for count in counts),
        arrays,
        {f"out_{index}": (shape, mx.bfloat16) for index, shape in enumerate(shapes)},
        {"MT": row_tiles(rows.count), **constants, **rows.constants},
        {
            "M": rows.count,
            "K": rows.width,
            **{f"N_{index}": count for index, count in enumerate(counts)},
            **rows.scalars,
        },
    )


def gated_step(name: str, gate: Any, up: Any, rows: Feed) -> Step:
    """out (1, T, N): silu(gate) * up."""
    arrays, constants = weights(gate)
    outputs = gate.weight.shape[0]
    return Step(
        name,
        bodies.gated(bool(constants), rows.kind),
        -(-outputs // 16),
        {**rows.inputs, **arrays, **weights(up, "_up")[0]},
        {"out": ((1, rows.count, outputs), mx.bfloat16)},
        {"MT": row_tiles(rows.count), **constants, **rows.constants},
        {"M": rows.count, "K": rows.width, "N": outputs, **rows.scalars},
    )


def row_tiles(rows: int) -> int:
    """Tiles of 8 rows."""
    return 1 if rows <= 8 else 2
