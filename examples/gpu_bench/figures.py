"""Figures a to e and g over one model in one process, where starting costs more than measuring.

python examples/gpu_bench/figures.py --precision q4
"""

from __future__ import annotations

import decode_speed
import prefill
import round_cost
import verify_cost
from cases import measure_all
from setting import parse


def main() -> None:
    """What is in the file already is left out, so that a run that was cut off goes on."""
    figures = [
        ("x-verify-16", verify_cost.measure),
        ("d", round_cost.measure),
        ("e", decode_speed.measure),
        ("x-prefill-tokens-sec", prefill.measure),
    ]
    measure_all(parse(__doc__ or ""), figures)


if __name__ == "__main__":
    main()
