"""Are rows exact by the fused kernels, and is a planted one found out? A random 16-layer target.

python examples/gpu_bench/check_exact.py --precision bf16
"""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
from models import SHAPES, bind, make_model
from setting import no_gpu, parse

from dflash_suite.core.cuda.backbone import FusedBackbone
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from dflash_suite.core.errors import ExactUnavailable
from dflash_suite.core.exact.plan import find_plan
from dflash_suite.core.target.target import Target

LAYERS = 16


class Planted(CudaKernels):
    """MLX's own matrix products from four rows on: right, but of another order of addition."""

    def linear(
        self, module: Any, x: mx.array, residual: mx.array | None = None, norm: Any = None
    ) -> mx.array:
        """The kernel, or the operation."""
        if x.shape[-2] < 4:
            return super().linear(module, x, residual, norm)
        return OpKernels().linear(module, x, residual, norm)

    def joins(self, layer: Any, rows: int, dtype: mx.Dtype) -> bool:
        """No launch of several steps where one of them is MLX's."""
        return rows < 4 and super().joins(layer, rows, dtype)


def main() -> int:
    """Print the plan, and what the planted kernel is found out by; exit 1 where either is wrong."""
    given = parse(__doc__ or "")
    if no_gpu():
        return 1
    SHAPES[given.shape]["num_hidden_layers"] = LAYERS
    model = make_model(given.shape, given.precision)
    target = bind(model, given.shape)
    plan = find_plan(target)
    print(f"{given.shape} {given.precision}: {plan.describe()}", flush=True)
    compiled: Any = mx.compile
    planted = Target(FusedBackbone(model, Planted(), compiled), target.config)
    try:
        found = find_plan(planted)
    except ExactUnavailable as error:
        print(f"planted: refused: {error}")
        return 0
    print(f"planted: {found.describe()}")
    return 0 if found.width == 3 else 1


if __name__ == "__main__":
    sys.exit(main())
