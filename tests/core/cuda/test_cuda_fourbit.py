"""The 4-bit product in a launch of its own, its text run on a CPU: right to float32's rounding of a
sum, rows independent of each other, of the blocks and of their number; and what is planted is
found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_suite.core.cuda.ops import fourbit
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.projections import feed
from dflash_suite.core.cuda.runtime import assemble
from dflash_suite.core.cuda.runtime.steps import run_step
from tests.kit.cuda_on_cpu import COMPILER, CudaOnCpu, forget_kernels

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to stand for nvcc")
SMALL = 30000
"""Bytes of shared memory that leave no room for all of k."""


@pytest.fixture(autouse=True)
def fresh(emulated: CudaOnCpu) -> Iterator[None]:
    """Each test plans its own launches and leaves the memory of a block as it was."""
    mx.random.seed(0)
    shared_memory = emulated.shared_memory
    yield
    emulated.shared_memory = shared_memory
    forget_kernels()


def layer(inputs: int, outputs: int, group: int = 64) -> Any:
    dense: Any = nn.Linear(inputs, outputs, bias=False)
    dense.weight = (mx.random.normal((outputs, inputs)) * inputs**-0.5).astype(mx.bfloat16)
    return nn.QuantizedLinear.from_linear(dense, group, 4)


def rows(count: int, width: int) -> mx.array:
    return mx.random.normal((1, count, width)).astype(mx.bfloat16)


def exactly(module: Any, x: mx.array) -> Any:
    """The product in float64, of weights that nothing has rounded."""
    scales, biases = (a.astype(mx.float32) for a in (module.scales, module.biases))
    weight = mx.dequantize(module.weight, scales, biases, module.group_size, 4)
    return np.array(x.astype(mx.float32), np.float64) @ np.array(weight, np.float64).T


def error(found: mx.array, expected: Any) -> float:
    wrong = np.array(found.astype(mx.float32)).astype(np.float64) - expected
    return float(np.linalg.norm(wrong) / np.linalg.norm(expected))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("inputs", "outputs", "group", "slices"),
    [(256, 72, 64, 1), (1280, 40, 64, 1), (1536, 72, 64, 3), (256, 32, 32, 1), (512, 24, 128, 1)],
)
def test_the_product_is_right_and_a_row_does_not_know_the_others(
    emulated: CudaOnCpu, inputs: int, outputs: int, group: int, slices: int
) -> None:
    emulated.shared_memory = SMALL if slices > 1 else 232448
    module, x, kernels = (
        layer(inputs, outputs, group),
        rows(13, inputs),
        CudaKernels(stream_from_bytes=0),
    )
    fed = feed(x, None)
    assert fed is not None and fourbit.takes(module)
    cut = fourbit.cut(fed, group)
    assert (cut.slices > 1) == (slices > 1) and cut.room <= emulated.shared_memory
    found = kernels.linear(module, x)
    rounding = error(
        mx.array(exactly(module, x).astype(np.float32)).astype(mx.bfloat16), exactly(module, x)
    )
    assert error(found, exactly(module, x)) < 1.05 * rounding
    for count, row in ((1, 0), (1, 12), (5, 4), (8, 5)):
        at = slice(row, row + count)
        assert mx.array_equal(kernels.linear(module, x[:, at]), found[:, at])
    assert fourbit.cut(feed(x[:, :1], None), group).slices == cut.slices  # type: ignore[arg-type]


@pytest.mark.long
def test_steps_are_the_separate_operations(emulated: CudaOnCpu) -> None:
    kernels, norm = CudaKernels(stream_from_bytes=0), nn.RMSNorm(512, eps=1e-6)
    norm.weight = mx.random.normal((512,)).astype(mx.bfloat16)
    modules = [layer(512, outputs) for outputs in (40, 16, 24)]
    pair = [layer(512, 56), layer(512, 56)]
    for limit, count in ((232448, 11), (SMALL, 1)):
        emulated.shared_memory = limit
        x = rows(count, 512) * 3
        normed = norm(x)
        found = kernels.several(modules, x, norm=norm)
        before = [kernels.linear(module, normed) for module in modules]
        for one, other in zip(found, before, strict=True):
            assert error(one, np.array(other.astype(mx.float32))) < 5e-3
        residual = rows(count, 16)
        added = kernels.linear(modules[1], normed, residual)
        assert mx.array_equal(added, (residual + before[1]))
        gate, up = (kernels.linear(module, normed) for module in pair)
        gated = kernels.gated(pair[0], pair[1], normed)
        assert error(gated, np.array((nn.silu(gate) * up).astype(mx.float32))) < 5e-3


FAULTS = {
    "the 128 is not taken back": (
        "fourbit",
        "fmaf(-128.0f, scale[h], ",
        "fmaf(-127.0f, scale[h], ",
    ),
    "copies are not waited for": ("fourbit", "wait_copies<kSteps - 1>()", "wait_copies<kSteps>()"),
    "a slice is left out": ("slices", "i < SLICES; ++i) sum[r]", "i < SLICES - 1; ++i) sum[r]"),
    "a nibble is another's": ("fourbit", ">> (4 * i)", ">> (4 * (i ^ 1))"),
    "the sums of a group of 32": ("fourbit", "mask < GROUP / 8", "mask < GROUP / 16"),
    "the scales are those of the tile before": ("fourbit", "scales[tile % 2]", "scales[0]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(
    emulated: CudaOnCpu, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, right, wrong = FAULTS[fault]
    read = assemble._read

    def planted(path: Path) -> str:
        text = read(path)
        assert path.stem != file or right in text
        return text.replace(right, wrong) if path.stem == file else text

    emulated.shared_memory = SMALL
    module, x = layer(1536, 112), rows(3, 1536)
    fed = feed(x, None)
    assert fed is not None
    right_step = fourbit.linear_step("linear", module, fed)
    assert error(run_step(right_step)[0], exactly(module, x)) < 3e-3
    assemble.assemble.cache_clear()
    monkeypatch.setattr(assemble, "_read", planted)
    try:
        found = run_step(fourbit.linear_step("linear", module, fed))[0]
        assert not error(found, exactly(module, x)) < 1e-2
    finally:
        assemble.assemble.cache_clear()
