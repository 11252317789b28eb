"""A layer in one launch is bitwise its steps one by one: the text of the CUDA kernels, run on a
CPU by blocks that run at the same time, so that a step which does not wait is found out."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_suite.core.cuda.backbone import FusedBackbone
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.runtime.steps import turn
from dflash_suite.core.target.target import Target
from tests.core.cuda.test_fused import same_caches, traced_once
from tests.kit.cuda_on_cpu import COMPILER, CudaOnCpu
from tests.kit.tiny import make_target, prompt

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to stand for nvcc")
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("bits", "share_below"),
    [(16, 1 << 30), (4, 0)],
    ids=["all between two attention calls", "layer by layer, 4 bits"],
)
def test_a_pass_is_that_of_separate_launches(
    emulated: CudaOnCpu, bits: int, share_below: int
) -> None:
    plain = make_target("hybrid", "bfloat16", num_hidden_layers=5, **SIZES)
    if bits == 4:
        quantize(plain.backbone.model)
    kernels = CudaKernels(share_below_bytes=share_below)
    apart, joined = (
        Target(FusedBackbone(plain.backbone.model, used, traced_once), plain.config)
        for used in (CudaKernels(0), kernels)
    )
    assert all(id(layer.mlp.down_proj.weight) in kernels.packs for layer in joined.backbone.layers)
    caches = joined.make_cache(), apart.make_cache()
    calls, before = [], launches()
    wide = 9 if bits == 16 else 5
    for rows, keep in ((wide, 4), (wide, wide), (1, 1)):
        ids = prompt(rows, seed=rows)
        hidden = []
        for target, cache in zip((joined, apart), caches, strict=True):
            start = len(emulated.calls)
            result = target.verify_rows(mx.array([ids]), cache, (0, 3))
            mx.eval(result.hidden, result.taps)
            calls.append(len(emulated.calls) - start)
            target.rollback(cache, result.tape, keep, rows - keep)
            assert result.taps is not None
            hidden += [result.hidden, result.taps]
        assert mx.array_equal(hidden[0], hidden[2]) and mx.array_equal(hidden[1], hidden[3])
        assert len({*map(float, hidden[0].flatten())}) > 50, "one number shows nothing"
    same_caches(*caches)
    each = 3 if share_below else 7
    assert calls[0] == 1 + each + 1, "numbers; all before the attention, it, all behind it; taps"
    assert calls[1] == 1 + 4 * 5 + 7 + 1
    assert launches() == before + 3 * each, "every launch waited for the one before"


def launches() -> int:
    """How many launches of several steps there have been."""
    count: Any = turn().token[0].item()
    return int(count)


def quantize(model: Any) -> None:
    """4-bit, its scales in bfloat16 as published."""

    nn.quantize(model, group_size=32, bits=4)
