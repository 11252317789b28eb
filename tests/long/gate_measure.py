"""What does the gate cost, and what does it save, on this machine? The bundled pair, measured.

    python -m tests.long.gate_measure [--tokens 500] [--runs 5] [--prompt hand-0]

Arms run one after the other, in turn: plain decoding, DFlash2 and MTP without the gate, DFlash2
alone with it, and DFlash2 with MTP in reserve. The table has the median speed of each against
plain decoding. End-of-sequence ids are switched off, so that every arm decodes the same number of
tokens; their ids must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.bundled.paths import PROMPTS_FILE
from dflash_suite.drafters.pair import load_pair


@dataclass
class Arm:
    """One way to decode; speeds in tokens per second, rounds by route of each run."""

    name: str
    drafter: Drafter | None = None
    reserve: Drafter | None = None
    gate: bool = False
    speeds: list[float] = field(default_factory=list)
    routes: list[dict[str, int]] = field(default_factory=list)


def arms() -> tuple[Target, object, list[Arm]]:
    """The target without eos, its tokenizer, and the arms."""
    pair = load_pair(LoadOptions(speculation="auto", stored_probe=False))
    target = Target(pair.target.backbone, replace(pair.target.config, eos_ids=frozenset()))
    dflash2, mtp = pair.drafter, pair.reserve
    assert dflash2 is not None and mtp is not None
    found = [
        Arm("none"),
        Arm("dflash2, no gate", dflash2),
        Arm("mtp, no gate", mtp),
        Arm("dflash2", dflash2, gate=True),
        Arm("dflash2 + mtp", dflash2, mtp, gate=True),
    ]
    return target, pair.tokenizer, found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the ids of two arms differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt", default="hand-0")
    args = parser.parse_args(argv)
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()
    prompts = {record["name"]: record["prompt_ids"] for record in map(json.loads, lines)}
    target, tokenizer, found = arms()
    ids: list[list[int]] = []
    for run in range(args.runs + 1):  # the first one warms up
        for arm in found:
            generation = Generation(
                target,
                prompts[args.prompt],
                tokenizer.detokenizer,  # type: ignore[attr-defined]
                drafter=arm.drafter,
                options=GenerateOptions(max_tokens=args.tokens, gate=arm.gate),
                setup=Setup(reserve=arm.reserve),
            )
            for _ in generation:
                pass
            ids.append(generation.emitter.token_ids)
            if run:
                arm.speeds.append(generation.stats.tokens_per_second or 0.0)
                arm.routes.append(generation.stats.rounds_by_route)
    plain = statistics.median(found[0].speeds)
    for arm in found:
        speed = statistics.median(arm.speeds)
        middle = arm.routes[arm.speeds.index(speed)] if speed in arm.speeds else arm.routes[-1]
        print(
            f"{arm.name:18} {speed:7.1f} tok/s  {speed / plain:5.2f} of none  "
            f"({min(arm.speeds):.1f}..{max(arm.speeds):.1f})  rounds {middle}"
        )
    same = all(found_ids == ids[0] for found_ids in ids)
    print(f"{len(set(ids[0]))} distinct of {len(ids[0])} ids, {'equal' if same else 'NOT EQUAL'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
