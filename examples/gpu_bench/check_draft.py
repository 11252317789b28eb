"""Is the fused draft right on this GPU? Its convolutions bit for bit against separate launches, and
a random DFlash2 drafter's ids against the plain operations'.

python examples/gpu_bench/check_draft.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from models import bind, draft_config, make_drafter, make_model
from setting import no_gpu

from dflash_suite.core.cuda.kernels import CudaKernels
from dflash_suite.core.drafter import TargetRows
from dflash_suite.drafters.cuda import kernels as ops
from dflash_suite.drafters.cuda.conv import after_branch, before_branch
from dflash_suite.drafters.layers import GroupedDynamicConv

WIDTHS = (1, 2, 8, 13, 16)


def main() -> int:
    """Print one line a case; exit 1 where one is wrong."""
    if no_gpu():
        return 1
    mx.random.seed(0)
    failures = sum(check_convolutions(bits) for bits in (16, 4)) + check_ids()
    print("failures:", failures)
    return 1 if failures else 0


def check_convolutions(bits: int) -> int:
    """Both fused launches against the projection and the convolution one after another."""
    kernels, config = CudaKernels(), draft_config("9b")
    width = config.hidden_size
    conv: Any = GroupedDynamicConv(config)
    conv.base_kernel = mx.random.normal(conv.base_kernel.shape).astype(mx.bfloat16)
    projection: Any = nn.Linear(12288, width, bias=False)
    for module in (conv.kernel_projection, projection):
        scale = module.weight.shape[1] ** -0.5
        module.weight = (mx.random.normal(module.weight.shape) * scale).astype(mx.bfloat16)
    if bits == 4:
        conv.kernel_projection = nn.QuantizedLinear.from_linear(conv.kernel_projection, 64, 4)
        projection = nn.QuantizedLinear.from_linear(projection, 64, 4)
    norm: Any = nn.RMSNorm(width)
    norm.weight = mx.random.normal((width,)).astype(mx.bfloat16)
    same, worst = True, 0.0
    for rows in WIDTHS:
        wide = mx.random.normal((1, rows, 12288)).astype(mx.bfloat16)
        residual = mx.random.normal((1, rows, width))
        mixed, late = before_branch(kernels, conv, residual, norm)
        out = after_branch(kernels, projection, conv, wide, late, residual)
        x = ops.row_norm(residual, norm)
        early, later = mx.split(kernels.linear(conv.kernel_projection, x), 2, axis=-1)
        y = kernels.linear(projection, wide)
        same &= bool(mx.array_equal(out, ops.convolve(conv, y, late, 1, residual)))
        plain = residual + conv.convolve(y, conv.deltas(x), 1).astype(mx.float32)
        for found, expected in (
            (mixed, ops.convolve(conv, x, early, 0)),
            (late, later),
            (out, plain),
        ):
            error: Any = mx.linalg.norm(found - expected) / mx.linalg.norm(expected)
            worst = max(worst, float(error.item()))
    wrong = not (same and 0 < worst < 1e-2)
    print(f"convolutions {bits}-bit: bitwise {same}, error {worst:.1e}{'  WRONG' if wrong else ''}")
    return int(wrong)


def check_ids() -> int:
    """Drafts of both paths. Random logits have near ties, and a DFlash2 path that parts once stays
    apart, so most of the first drafts must agree."""
    target = bind(make_model("9b", "q4"), "9b")
    wrong = 0
    for kind in ("dflash2", "dflash"):
        fused = make_drafter(target, "9b", kind=kind)
        plain = make_drafter(target, "9b", kind=kind)
        plain._fused = None
        agreed = total = first = 0
        for count in (1, 7, 40, 3):
            taps = mx.random.normal((1, count, 5 * 4096)).astype(mx.bfloat16)
            rows = TargetRows(fused.position, mx.zeros((count,)), taps, taps[..., :4096])
            for drafter in (fused, plain):
                drafter.observe(replace(rows))
            ids = [drafter.draft(mx.array([77]), 7).tolist() for drafter in (fused, plain)]
            first += ids[0][0] == ids[1][0]
            agreed += sum(a == b for a, b in zip(*ids, strict=True))
            total += 7
        lengths = fused.context_lengths == plain.context_lengths
        bad = fused._fused is None or not lengths or first < 3
        print(f"{kind}: {agreed} of {total} drafts equal{'  WRONG' if bad else ''}", flush=True)
        wrong += bad
    return wrong


if __name__ == "__main__":
    sys.exit(main())
