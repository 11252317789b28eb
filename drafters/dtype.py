"""The compute dtype of a drafter's branches."""

from __future__ import annotations

import mlx.core as mx

from ..core.target.target import Target


def drafter_dtype(target: Target) -> mx.Dtype:
    """The target's compute dtype; bfloat16 for a float16 target, whose range is too small for the
    outlier channels of a drafter's residual stream."""
    dtype = target.compute_dtype
    return mx.bfloat16 if dtype == mx.float16 else dtype
