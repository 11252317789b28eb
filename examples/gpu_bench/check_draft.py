"""Is the fused draft right on this GPU? Its convolutions bit for bit against separate launches, and
the hidden rows of random drafters against plain operations.

python examples/gpu_bench/check_draft.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from models import bind, draft_config, make_drafter, make_model
from setting import no_gpu

from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.drafters.dflash.cuda import steps as ops
from dflash_suite.drafters.dflash.cuda.conv import after_branch, before_branch
from dflash_suite.drafters.dflash.layers import GroupedDynamicConv

WIDTHS = (1, 2, 8, 13, 16)


def main() -> int:
    """Print one line a case; exit 1 where one is wrong."""
    if no_gpu():
        return 1
    mx.random.seed(0)
    failures = sum(check_convolutions(bits) for bits in (16, 4)) + check_hidden()
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


def check_hidden() -> int:
    """Hidden rows of fused drafts against plain operations in float32: no further off than plain
    ones in bfloat16 are. Ids tell less: random logits have near ties, and a path that parts once
    stays apart."""
    target = bind(make_model("9b", "q4"), "9b")
    mx.disable_compile()  # so that hidden rows can be looked at
    wrong = 0
    for kind in ("dflash2", "dflash"):
        fused, plain, exact = (make_drafter(target, "9b", kind=kind) for _ in range(3))
        plain._fused = exact._fused = None
        exact.model.update(tree_map(in_float32, exact.model.parameters()))
        exact._dtype = mx.float32
        exact.reset(0)
        seen = hidden_rows(fused)
        ours, theirs, agreed, total = [], [], 0, 0
        for count in (1, 7, 40, 3):
            taps = mx.random.normal((1, count, 5 * 4096)).astype(mx.bfloat16)
            rows = TargetRows(fused.position, mx.zeros((count,)), taps, taps[..., :4096])
            for drafter in (fused, plain, exact):
                drafter.observe(replace(rows))
            anchor = mx.array([77])
            ids = [drafter.draft(anchor, 7).tolist() for drafter in (fused, plain)]
            near, reference = (drafter.block_hidden(anchor, 7) for drafter in (plain, exact))
            ours.append(distance(seen[-1], reference))
            theirs.append(distance(near, reference))
            agreed += sum(a == b for a, b in zip(*ids, strict=True))
            total += 7
        lengths = fused.context_lengths == plain.context_lengths
        bad = fused._fused is None or not lengths or max(ours) > 1.3 * max(theirs)
        print(
            f"{kind}: hidden rows {max(ours):.1e} from float32's, plain ones {max(theirs):.1e}; "
            f"{agreed} of {total} drafts equal{'  WRONG' if bad else ''}",
            flush=True,
        )
        wrong += bad
    mx.enable_compile()
    return wrong


def hidden_rows(drafter: Any) -> list[mx.array]:
    """Fills with what each fused draft hands to the head."""
    seen: list[mx.array] = []
    inner = drafter._fused._head

    def head(hidden: mx.array) -> mx.array:
        seen.append(hidden)
        logits: mx.array = inner(hidden)
        return logits

    drafter._fused._head = head
    return seen


def in_float32(weight: mx.array) -> mx.array:
    """Packed weights stay packed."""
    return weight.astype(mx.float32) if weight.dtype == mx.bfloat16 else weight


def distance(found: mx.array, expected: mx.array) -> float:
    """Of the norm of what was expected."""
    error: Any = mx.linalg.norm((found - expected).flatten()) / mx.linalg.norm(expected.flatten())
    return float(error.item())


if __name__ == "__main__":
    sys.exit(main())
