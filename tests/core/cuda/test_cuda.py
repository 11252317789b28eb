"""The CUDA kernels themselves; examples/gpu_bench/check_kernels.py holds them at real sizes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_suite.core.cuda.ops.fused_ops import CudaKernels, cuda_in_use
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from tests.kit.tiny import make_model

pytestmark = pytest.mark.skipif(
    not cuda_in_use(), reason="the kernels compile and run on an NVIDIA GPU only"
)


def distance(found: mx.array, expected: mx.array) -> float:
    a, b = found.astype(mx.float32), expected.astype(mx.float32)
    error: Any = mx.linalg.norm((a - b).flatten()) / mx.linalg.norm(b.flatten())
    return float(error.item())


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("rows", [1, 5, 8, 13])
def test_projections_are_right_and_rows_do_not_know_each_other(bits: int, rows: int) -> None:
    mx.random.seed(0)
    layer: Any = nn.Linear(256, 96, bias=False)
    layer.weight = mx.random.normal((96, 256)).astype(mx.bfloat16)
    if bits == 4:
        layer = nn.QuantizedLinear.from_linear(layer, 64, 4)
    x = mx.random.normal((1, rows, 256)).astype(mx.bfloat16)
    made = CudaKernels().linear(layer, x)
    assert 0 < distance(made, OpKernels().linear(layer, x)) < 1e-2
    for row in range(rows):
        assert mx.array_equal(made[:, row], CudaKernels().linear(layer, x[:, row : row + 1])[:, 0])


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_the_recurrence_is_right_and_strictly_sequential(rows: int) -> None:
    sizes: Any = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    layer = make_model("hybrid", **sizes).layers[0].linear_attn
    heads = layer.num_v_heads
    qkv = mx.random.normal((1, rows, layer.conv_dim))
    window = mx.random.normal((1, layer.conv_kernel_size - 1, layer.conv_dim))
    a, b = (mx.random.normal((1, rows, heads)) for _ in range(2))
    state = mx.random.normal((1, heads, 32, 32))
    made = CudaKernels().gdn(layer, (qkv, a, b), window, state)
    expected = OpKernels().gdn(layer, (qkv, a, b), window, state)
    for found, right in zip(made, expected, strict=True):
        assert distance(found, right) < 1e-5
    for row in range(rows):
        at = slice(row, row + 1)
        y, state, window = CudaKernels().gdn(layer, (qkv[:, at], a[:, at], b[:, at]), window, state)
        assert mx.array_equal(y[:, 0], made[0][:, row])
    assert mx.array_equal(state, made[1]) and mx.array_equal(window, made[2])
