"""Does --exact give the same ids in every mode on this device? The bundled pair, in parts.

    python tests/exact_identity.py [--results FILE] [--seconds S] [--prompts N] [--stdlib N]
        [--max-tokens N] [--dtype D] [--model DIR] [--kernels K] [--width W] [--blocks 2,8]

Each prompt is decoded by plain decoding, by both drafters at every block from 2 to the exact width
(the trained block, where that is less) and by the MTP head at every depth, all by the plan that is
found on the device, or with --width by passes padded to that many rows. Every answer is a line of
FILE; a run goes on where the last one stopped, and ends after --seconds. Then the answers are
compared: 1 where one differs, where drafts were never kept or never refused, or where answers are
missing. For what the plan costs, plain decoding and DFlash2 at its widest block also run without
it; those ids are counted apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from identity import Case, bundled_cases, decode, stdlib_cases

from dflash_suite.core.bench_environment import describe_device, describe_versions
from dflash_suite.core.bench_types import hash_ids
from dflash_suite.core.exact import ExactPlan, ExactTarget
from dflash_suite.core.options import MAX_DRAFT_TOKENS
from dflash_suite.core.promise import keep_exact
from dflash_suite.core.target import Target
from dflash_suite.drafters.bundled import ROOT
from dflash_suite.drafters.pair import Pair, load_pair

PLAIN = "none"


@dataclass(frozen=True)
class Mode:
    """A way to decode: the pair to do it with, and the rows of its block (None: plain)."""

    name: str
    pair: Pair
    block: int | None
    exact: bool = True


def load_modes(args: argparse.Namespace) -> tuple[list[Mode], Target, ExactPlan]:
    """Every mode, the exact ones first; the target as it is; the plan."""
    common: dict[str, Any] = {
        "dtype": args.dtype, "kernels": args.kernels, "exact": False, "stored_probe": False,
    }  # fmt: skip
    first = load_pair(args.model, "bundled:dflash2", "dflash", **common)
    loose = first.target
    if args.width:
        plan = ExactPlan(args.width, pads=True)
        exact: Target = ExactTarget(loose, plan)
    else:
        exact, promise = keep_exact(loose, True, rows=1, stored=False)
        assert promise.plan is not None
        plan = promise.plan
    pairs = {
        "dflash2": first,
        "dflash": load_pair(args.model, "bundled:dflash", "dflash", **common),
        # A converted copy of the target has lost its head.
        "mtp": load_pair(args.model, speculation="mtp", mtp=str(ROOT / "target"), **common),
    }
    modes = [Mode(PLAIN, replace(first, target=exact, drafter=None), None)]
    for name, pair in pairs.items():
        widest = min(plan.width, MAX_DRAFT_TOKENS + 1 if name == "mtp" else trained_block(pair))
        used = replace(pair, target=exact)
        blocks = [block for block in range(2, widest + 1) if block in (args.blocks or (block,))]
        modes += [Mode(f"{name} {block}", used, block) for block in blocks]
    widest = min(plan.width, trained_block(first))
    modes.append(Mode(f"{PLAIN} as it is", replace(first, drafter=None), None, exact=False))
    modes.append(Mode(f"dflash2 {widest} as it is", first, widest, exact=False))
    return modes, loose, plan


def trained_block(pair: Pair) -> int:
    """Rows that the pair's DFlash drafter was trained for."""
    config: Any = getattr(pair.drafter, "config", None)
    return int(config.block_size)


def answer(mode: Mode, case: Case, max_tokens: int) -> dict[str, Any]:
    """One line of the results."""
    ids, stats = decode(mode.pair, case, mode.block, max_tokens)
    return {
        "prompt": case.name,
        "mode": mode.name,
        "tokens": len(ids),
        "sha256": hash_ids(ids),
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "passes": stats.rounds + stats.plain_steps,
        "decode_sec": stats.decode_sec,
    }


class Results:
    """The answers so far, in a file whose first line says what they are answers to."""

    def __init__(self, file: Path, head: dict[str, Any]) -> None:
        self.file = file
        self.lines: dict[tuple[str, str], dict[str, Any]] = {}
        if not file.exists():
            self._append(head)
            return
        stated, *answers = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if stated != head:
            sys.exit(f"{file} holds answers of another run:\n{stated}\nthis one is\n{head}")
        self.lines = {(one["prompt"], one["mode"]): one for one in answers}

    def add(self, line: dict[str, Any]) -> None:
        """Keep one answer."""
        self.lines[line["prompt"], line["mode"]] = line
        self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def missing(
    results: Results, cases: Sequence[Case], modes: Sequence[Mode]
) -> Iterator[tuple[Mode, Case]]:
    """What is still to be decoded, prompt by prompt."""
    for case in cases:
        for mode in modes:
            if (case.name, mode.name) not in results.lines:
                yield mode, case


def judge(results: Results, cases: Sequence[Case], modes: Sequence[Mode]) -> list[str]:
    """Print a line a mode; returns the problems."""
    problems: list[str] = []
    print("mode                answers  tokens rounds accepted drafted differing  ms/pass")
    for mode in modes:
        found = [one for one in results.lines.values() if one["mode"] == mode.name]
        known = [one for one in found if (one["prompt"], PLAIN) in results.lines]
        other = [
            one["prompt"]
            for one in known
            if one["sha256"] != results.lines[one["prompt"], PLAIN]["sha256"]
        ]
        sums = {
            key: sum(one[key] for one in found)
            for key in ("tokens", "rounds", "accepted", "drafted")
        }
        times = [one["decode_sec"] / one["passes"] for one in found if one["passes"]]
        speed = f"{1e3 * median(times):8.2f}" if times else "       -"
        print(
            f"{mode.name:20} {len(found):6} {sums['tokens']:7} {sums['rounds']:6} "
            f"{sums['accepted']:8} {sums['drafted']:7} {len(other):9} {speed}"
        )
        if not mode.exact:
            continue
        problems += [f"{mode.name}: other ids on {name}" for name in other]
        if len(found) < len(cases):
            problems.append(f"{mode.name}: {len(cases) - len(found)} answers are missing")
        if mode.block is not None and not 0 < sums["accepted"] < sums["drafted"]:
            problems.append(f"{mode.name}: {sums['accepted']} of {sums['drafted']} drafts kept")
    return problems


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("exact-identity.jsonl"))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--prompts", type=int, default=40, help="of prompts.jsonl")
    parser.add_argument("--stdlib", type=int, default=60, help="cut from the standard library")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model", help="a copy of the bundled target, quantized for example")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--width", type=int, help="pad to so many rows, whatever is needed here")
    parser.add_argument(
        "--blocks", type=lambda text: tuple(int(item) for item in text.split(",")), default=()
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Go on until all is decoded or the time is over, then compare."""
    args = parse(argv)
    started = time.perf_counter()
    modes, target, plan = load_modes(args)
    cases = bundled_cases(args.prompts)
    cases += stdlib_cases(modes[0].pair.tokenizer, args.stdlib, args.seed)
    head = {
        "plan": {**plan.to_dict(), "date": ""},
        "dtype": str(target.compute_dtype),
        "model": args.model or "bundled",
        "kernels": args.kernels,
        "max_tokens": args.max_tokens,
        "seed": args.seed,
        "device": describe_device()["name"],
        "versions": describe_versions(""),
    }
    print(f"plan: {plan.describe()}; {head['dtype']} on {head['device']}", flush=True)
    results = Results(args.results, head)
    for mode, case in missing(results, cases, modes):
        if time.perf_counter() - started > args.seconds:
            break
        results.add(answer(mode, case, args.max_tokens))
    problems = judge(results, cases, modes)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "identical")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
