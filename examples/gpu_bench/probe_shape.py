"""The table of `dflash doctor --probe` for a published shape with random weights.

python examples/gpu_bench/probe_shape.py --precision bf16 --context 64 --context 2000
"""

from __future__ import annotations

from decode_speed import Silent
from models import bind, make_drafter, make_model
from setting import parse

from dflash_suite.cli.text.probe import print_probe
from dflash_suite.doctor.probe.measure import probe
from dflash_suite.doctor.probe.options import ProbeOptions


def main() -> None:
    """One model, all contexts; the drafter's cost too, but not its acceptance, which is chance."""
    given = parse(__doc__ or "")
    model = make_model(given.shape, given.precision)
    options = ProbeOptions(given.contexts, repeats=given.repeats, prompts=1, max_tokens=16)
    target = bind(model, given.shape)
    drafter = make_drafter(target, given.shape)
    prompts = [list(range(100, 140))]
    print_probe(probe(target, [drafter], prompts, Silent, options, print))


if __name__ == "__main__":
    main()
