"""Are rows exact where mlx-lm's own kernels run at one width over a fixed number of keys?

What `--exact` does where the fused kernels do not take all of a model. A random 16-layer target.

python examples/gpu_bench/check_padded.py --shape 35b-a3b --precision q4
"""

from __future__ import annotations

import sys

from models import SHAPES, bind, make_model
from setting import no_gpu, parse

from dflash_suite.core.exact.agreement import agree_in_every_way
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget

LAYERS = 16
WIDTHS = (4, 8, 16)
CONTEXTS = (64, 2000, 8000)


def main() -> int:
    """A line a width and context; exit 1 where a row or a cache differs."""
    given = parse(__doc__ or "", CONTEXTS)
    if no_gpu():
        return 1
    SHAPES[given.shape]["num_hidden_layers"] = LAYERS
    stock = bind(make_model(given.shape, given.precision), given.shape, fused=False)
    problems = 0
    for context in given.contexts:
        for width in WIDTHS:
            target = ExactTarget(stock, ExactPlan(width, pads=True))
            found = agree_in_every_way(target, width, context)
            problems += not found.holds
            print(f"{given.shape} {given.precision}: {found.describe()}", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
