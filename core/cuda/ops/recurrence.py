"""A Gated DeltaNet layer between its projections, as a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ..runtime.steps import Given, Step
from . import bodies


def fits_gdn(layer: Any, dtype: mx.Dtype) -> bool:
    """True for head sizes in 32s and one float type throughout."""
    dtypes = {dtype, layer.conv1d.weight.dtype, layer.dt_bias.dtype}
    return bool(
        len(dtypes) == 1
        and dtype in (mx.bfloat16, mx.float32)
        and layer.head_k_dim % 32 == 0
        and layer.head_k_dim <= 256
        and layer.head_v_dim % 32 == 0
        and "bias" not in layer.conv1d
    )


def gdn_step(
    name: str,
    layer: Any,
    inputs: Mapping[str, Given],
    rows: int,
    every: bool,
    dtype: mx.Dtype,
) -> Step:
    """y, states, windows of `rows` rows, as OpKernels.gdn. inputs: qkv, window, a, b, state and
    place."""
    heads, value_dim, key_dim = layer.num_v_heads, layer.head_v_dim, layer.head_k_dim
    before = layer.conv_kernel_size - 1
    return Step(
        name,
        bodies.recurrence(),
        heads * (value_dim // 32),
        {
            **inputs,
            "taps": layer.conv1d.weight,
            "a_log": _single(layer.A_log),
            "dt_bias": layer.dt_bias,
        },
        {
            "y": ((1, rows, heads, value_dim), dtype),
            "states": ((rows if every else 1, heads, value_dim, key_dim), mx.float32),
            "windows": ((1, before + (rows if every else 0), layer.conv_dim), dtype),
        },
        {
            "In": dtype,
            "Hk": layer.num_k_heads,
            "Hv": heads,
            "Dk": key_dim,
            "Dv": value_dim,
            "KS": layer.conv_kernel_size,
            "EVERY": int(every),
        },
        {"M": rows},
    )


def gated_norm_step(name: str, norm: Any, y: mx.array, z: mx.array) -> Step:
    """out (1, T, Hv * Dv): the norm of every head, gated."""
    _, rows, heads, dim = y.shape
    return Step(
        name,
        bodies.gated_norm(),
        -(-rows * heads // 8),
        {"x": y, "weight": norm.weight, "gate": z},
        {"out": ((1, rows, heads * dim), y.dtype)},
        {"In": y.dtype, "D": dim},
        {"count": rows * heads, "eps": float(norm.eps)},
    )


def _single(array: mx.array) -> mx.array:
    """In float32; the array itself where it is."""
    return array if array.dtype == mx.float32 else array.astype(mx.float32)
