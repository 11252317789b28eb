"""The fused kernels as functions of mlx-lm's modules; what does not fit goes to MLX's operations.

Every one is bitwise independent of its neighbours: T rows give what T calls of one row give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..device import on_cuda
from . import sources
from .attention import fits_heads
from .compiler import can_compile
from .ops import OpKernels, normed, split_heads

MAX_ROWS = 16
"""Rows of the narrow matmul; wider ones are MLX's."""
WIDE_BLOCKS = 264
"""Two blocks for each of Hopper's multiprocessors: with fewer, a block takes one tile of 16."""

GATED_HEADS = (32, 64, 128, 256)
"""Sizes of a GDN head whose gated norm a projection can take over; a warp has 32 lanes."""
MAX_GATED_HEADS = 64
"""Heads whose factors a block holds."""


def cuda_in_use() -> bool:
    """True where MLX computes on an NVIDIA GPU that the kernels can be compiled for."""
    return on_cuda() and can_compile()


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


def fits_gdn(layer: Any, qkv: mx.array) -> bool:
    """True for head sizes in 32s and one float type throughout."""
    dtypes = {qkv.dtype, layer.conv1d.weight.dtype, layer.dt_bias.dtype}
    return bool(
        len(dtypes) == 1
        and qkv.dtype in (mx.bfloat16, mx.float32)
        and layer.head_k_dim % 32 == 0
        and layer.head_k_dim <= 256
        and layer.head_v_dim % 32 == 0
        and "bias" not in layer.conv1d
    )


def layer_arrays(module: Any) -> tuple[list[mx.array], list[tuple[str, Any]]]:
    """A layer's arrays in the kernel's order, and its template arguments."""
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        return [module.weight, module.scales, module.biases], [("GROUP", module.group_size)]
    return [module.weight], []


@dataclass(frozen=True)
class Feed:
    """The rows of a projection: `count` of `width` numbers, and how a kernel reads them.

    kind: a key of `sources.ROWS`; arrays, scalars and template: what that kind takes.
    """

    kind: str
    count: int
    width: int
    arrays: list[mx.array]
    scalars: Mapping[str, float] = field(default_factory=dict)
    template: Sequence[tuple[str, Any]] = ()


class CudaKernels(OpKernels):
    """OpKernels with every call that fits on a fused kernel."""

    def linear(
        self, module: Any, x: mx.array, residual: mx.array | None = None, norm: Any = None
    ) -> mx.array:
        rows = feed(x, norm)
        if rows is None or not fits_linear(module, rows.count):
            return super().linear(module, x, residual, norm)
        return self._linear(module, rows, residual)

    def _linear(self, module: Any, rows: Feed, residual: mx.array | None) -> mx.array:
        arrays, template = layer_arrays(module)
        outputs, inputs = module.weight.shape[0], rows.width
        tiles = 2 if outputs % 32 == 0 and outputs // 32 >= WIDE_BLOCKS else 1
        extra = [] if residual is None else [residual]
        kernel = sources.linear_kernel(len(arrays) > 1, residual is not None, rows.kind)
        (out,) = kernel(
            inputs=[*rows.arrays, *arrays, *extra],
            template=[("RT", tiles), ("MT", row_tiles(rows.count)), *template, *rows.template],
            scalars={"M": rows.count, "K": inputs, "N": outputs, **rows.scalars},
            blocks=-(-outputs // (16 * tiles)),
            output_shapes=[(1, rows.count, outputs)],
            output_dtypes=[mx.bfloat16],
        )
        return out

    def several(
        self,
        modules: Sequence[Any],
        x: mx.array,
        heads: Sequence[int] | None = None,
        norm: Any = None,
    ) -> list[mx.array]:
        rows = feed(x, norm)
        fit = rows is not None and all(fits_linear(module, x.shape[-2]) for module in modules)
        parts = [layer_arrays(module) for module in modules] if fit else []
        if rows is None or not fit or any(template != parts[0][1] for _, template in parts):
            return super().several(modules, x, heads, norm)
        quantized = len(parts[0][0]) > 1
        outputs = [module.weight.shape[0] for module in modules]
        return sources.several_kernel(quantized, len(modules), rows.kind)(
            inputs=[*rows.arrays, *(array for arrays, _ in parts for array in arrays)],
            template=[("MT", row_tiles(rows.count)), *parts[0][1]],
            scalars={
                "M": rows.count,
                "K": rows.width,
                **{f"N_{index}": count for index, count in enumerate(outputs)},
                **rows.scalars,
            },
            blocks=sum(-(-count // 16) for count in outputs),
            output_shapes=[
                split_heads(x.shape, count, index, heads) for index, count in enumerate(outputs)
            ],
            output_dtypes=[mx.bfloat16] * len(outputs),
        )

    def fits_attention(self, attention: Any, rope: Any, rows: int, dtype: mx.Dtype) -> bool:
        return fits_heads(attention, rope, rows) and dtype == mx.bfloat16

    def gated(self, gate: Any, up: Any, x: mx.array, norm: Any = None) -> mx.array:
        rows, count = feed(x, norm), x.shape[-2]
        same = type(gate) is type(up) and gate.weight.shape == up.weight.shape
        fit = same and fits_linear(gate, count) and fits_linear(up, count)
        if rows is None or not fit or layer_arrays(gate)[1] != layer_arrays(up)[1]:
            return super().gated(gate, up, x, norm)
        arrays, template = layer_arrays(gate)
        outputs = gate.weight.shape[0]
        (out,) = sources.gated_kernel(len(arrays) > 1, rows.kind)(
            inputs=[*rows.arrays, *arrays, *layer_arrays(up)[0]],
            template=[("MT", row_tiles(count)), *template],
            scalars={"M": count, "K": rows.width, "N": outputs, **rows.scalars},
            blocks=-(-outputs // 16),
            output_shapes=[(1, count, outputs)],
            output_dtypes=[mx.bfloat16],
        )
        return out

    def gdn(
        self,
        layer: Any,
        qkv: mx.array,
        window: mx.array,
        a: mx.array,
        b: mx.array,
        state: mx.array,
        every: bool = False,
        place: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, mx.array]:
        if not fits_gdn(layer, qkv):
            return super().gdn(layer, qkv, window, a, b, state, every, place)
        heads, value_dim = layer.num_v_heads, layer.head_v_dim
        rows, before, channels = qkv.shape[1], layer.conv_kernel_size - 1, qkv.shape[2]
        y, states, windows = sources.gdn_kernel()(
            inputs=[
                qkv,
                window,
                layer.conv1d.weight,
                a,
                b,
                layer.A_log.astype(mx.float32),
                layer.dt_bias,
                state,
                mx.array([0, 0], dtype=mx.int32) if place is None else place,
            ],
            template=[
                ("In", qkv.dtype),
                ("Hk", layer.num_k_heads),
                ("Hv", heads),
                ("Dk", layer.head_k_dim),
                ("Dv", value_dim),
                ("KS", layer.conv_kernel_size),
                ("EVERY", every),
            ],
            blocks=heads * (value_dim // 32),
            output_shapes=[
                (1, rows, heads, value_dim),
                (rows if every else 1, *state.shape[1:]),
                (1, before + (rows if every else 0), channels),
            ],
            output_dtypes=[qkv.dtype, mx.float32, qkv.dtype],
        )
        return y, states, windows

    def gated_norm(self, norm: Any, y: mx.array, z: mx.array) -> mx.array:
        _, rows, heads, dim = y.shape
        fit = dim % 32 == 0 and norm.weight.dtype == y.dtype == z.dtype
        if not fit or y.dtype not in (mx.bfloat16, mx.float32):
            return super().gated_norm(norm, y, z)
        (out,) = sources.norm_kernel()(
            inputs=[y, norm.weight, z],
            template=[("In", y.dtype), ("D", dim)],
            scalars={"eps": float(norm.eps)},
            blocks=-(-rows * heads // 8),
            output_shapes=[(1, rows, heads * dim)],
            output_dtypes=[y.dtype],
        )
        return out

    def linear_gate_normed(
        self, module: Any, y: mx.array, norm: Any, z: mx.array, residual: mx.array
    ) -> mx.array:
        _, count, heads, dim = y.shape
        fit = fits_linear(module, count) and dim in GATED_HEADS and heads <= MAX_GATED_HEADS
        if not fit or {y.dtype, z.dtype, norm.weight.dtype} != {mx.bfloat16}:
            return super().linear_gate_normed(module, y, norm, z, residual)
        rows = Feed(
            "_gate_normed",
            count,
            heads * dim,
            [y, norm.weight, z],
            {"eps": float(norm.eps)},
            [("D", dim), ("HEADS", heads)],
        )
        return self._linear(module, rows, residual)


def feed(x: mx.array, norm: Any) -> Feed | None:
    """How a projection reads x (1, T, K) through `norm`; None where no kernel does."""
    count, width = x.shape[-2:]
    if norm is not None and fits_norm(norm, x):
        return Feed("_normed", count, width, [x, norm.weight], {"eps": float(norm.eps)})
    x = normed(norm, x)
    return Feed("", count, width, [x]) if x.dtype == mx.bfloat16 else None


def fits_norm(norm: Any, x: mx.array) -> bool:
    """True for an RMSNorm in bfloat16, of bfloat16 or float32 rows."""
    bf16 = norm.weight.dtype == mx.bfloat16
    return type(norm) is nn.RMSNorm and bf16 and x.dtype in (mx.bfloat16, mx.float32)


def row_tiles(rows: int) -> int:
    """Tiles of 8 rows."""
    return 1 if rows <= 8 else 2
