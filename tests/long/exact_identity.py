"""Does --exact give the same ids in every mode on this device? The bundled pair, in parts.

    python -m tests.long.exact_identity [--results FILE] [--seconds S] [--prompts N] [--stdlib N]
        [--max-tokens N] [--dtype D] [--model DIR] [--kernels K] [--width W] [--blocks 2,8]
        [--part I/N]
    python -m tests.long.exact_identity --merge FILE...

Each prompt is decoded by plain decoding, by both drafters at every block from 2 to the exact width
(the trained block, where that is less) and by the MTP head at every depth, all by the plan that is
found on the device, or with --width by passes padded to that many rows. Every answer is a line of
FILE; a run goes on where the last one stopped, and ends after --seconds. Then the answers are
compared: 1 where one differs, where drafts were never kept or never refused, or where answers are
missing. --part 1/4 takes every fourth prompt, so that processes can share the work; --merge then
compares what their files hold. For what the plan costs, plain decoding and DFlash2 at its widest
block also run without it; those ids are counted apart.
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

from dflash_suite.core.bench.environment import describe_device, describe_versions
from dflash_suite.core.bench.types import hash_ids
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget
from dflash_suite.core.exact.promise import keep_exact
from dflash_suite.core.options import MAX_DRAFT_TOKENS, LoadOptions
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.bundled.paths import ROOT
from dflash_suite.drafters.pair import Pair, load_pair
from tests.long.identity import Case, bundled_cases, decode, stdlib_cases

PLAIN = "none"
AS_IT_IS = "as it is"
Answers = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Mode:
    """A way to decode: the pair to do it with, whether it drafts, and the rows of its block.

    Without a pair it is one whose answers are on file.
    """

    name: str
    pair: Pair | None
    block: int | None
    exact: bool = True

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""
        return not self.name.startswith(PLAIN)


def load_modes(args: argparse.Namespace) -> tuple[list[Mode], Any, Target, ExactPlan]:
    """Every mode, the exact ones first; the tokenizer; the target as it is; the plan."""
    common: dict[str, Any] = {
        "dtype": args.dtype, "kernels": args.kernels, "exact": False, "stored_probe": False,
    }  # fmt: skip
    first = load_pair(
        LoadOptions(model=args.model, drafter="bundled:dflash2", speculation="dflash", **common)
    )
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
        "dflash": load_pair(
            LoadOptions(model=args.model, drafter="bundled:dflash", speculation="dflash", **common)
        ),
        # A converted copy of the target has lost its head.
        "mtp": load_pair(
            LoadOptions(model=args.model, speculation="mtp", mtp=str(ROOT / "target"), **common)
        ),
    }
    modes = [Mode(PLAIN, replace(first, target=exact, drafter=None), None)]
    for name, pair in pairs.items():
        widest = min(plan.width, MAX_DRAFT_TOKENS + 1 if name == "mtp" else trained_block(pair))
        used = replace(pair, target=exact)
        blocks = [block for block in range(2, widest + 1) if block in (args.blocks or (block,))]
        modes += [Mode(f"{name} {block}", used, block) for block in blocks]
    widest = min(plan.width, trained_block(first))
    modes.append(Mode(f"{PLAIN} {AS_IT_IS}", replace(first, drafter=None), None, exact=False))
    modes.append(Mode(f"dflash2 {widest} {AS_IT_IS}", first, widest, exact=False))
    return modes, first.tokenizer, loose, plan


def trained_block(pair: Pair) -> int:
    """Rows that the pair's DFlash drafter was trained for."""
    config: Any = getattr(pair.drafter, "config", None)
    return int(config.block_size)


def answer(mode: Mode, case: Case, max_tokens: int) -> dict[str, Any]:
    """One line of the results."""
    assert mode.pair is not None
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
        self.lines: Answers = {}
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


def judge(answers: Answers, prompts: int, modes: Sequence[Mode]) -> list[str]:
    """Print a line a mode; returns the problems. prompts: how many there should be."""
    problems: list[str] = []
    print("mode                answers  tokens rounds accepted drafted differing  ms/pass")
    for mode in modes:
        found = [one for one in answers.values() if one["mode"] == mode.name]
        known = [one for one in found if (one["prompt"], PLAIN) in answers]
        other = [
            one["prompt"]
            for one in known
            if one["sha256"] != answers[one["prompt"], PLAIN]["sha256"]
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
        if len(found) < prompts:
            problems.append(f"{mode.name}: {prompts - len(found)} answers are missing")
        if mode.drafts and not 0 < sums["accepted"] < sums["drafted"]:
            problems.append(f"{mode.name}: {sums['accepted']} of {sums['drafted']} drafts kept")
    return problems


def merge(files: Sequence[Path]) -> list[str]:
    """The problems of answers in several files of one run; a prompt that none holds is missing."""
    heads: list[Any] = []
    answers: Answers = {}
    for file in files:
        head, *lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        heads.append(head)
        answers |= {(one["prompt"], one["mode"]): one for one in lines}
    if any(head != heads[0] for head in heads):
        sys.exit(f"these are files of different runs:\n{heads}")
    print(json.dumps(heads[0]))
    names = dict.fromkeys(mode for _, mode in answers)
    modes = [Mode(name, None, None, exact=not name.endswith(AS_IT_IS)) for name in names]
    prompts: int = heads[0]["prompts"]
    print(f"{len({prompt for prompt, _ in answers})} of {prompts} prompts")
    return judge(answers, prompts, modes)


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
    parser.add_argument("--part", type=parse_part, default=(1, 1), help="1/4: every fourth prompt")
    parser.add_argument("--merge", type=Path, nargs="+", help="compare what these files hold")
    return parser.parse_args(argv)


def parse_part(text: str) -> tuple[int, int]:
    """1/4 -> (1, 4)."""
    part, count = (int(piece) for piece in text.split("/"))
    if not 1 <= part <= count:
        raise argparse.ArgumentTypeError(f"{text} is no part: give 1/{count} to {count}/{count}")
    return part, count


def main(argv: Sequence[str] | None = None) -> int:
    """Go on until all is decoded or the time is over, then compare."""
    args = parse(argv)
    if args.merge:
        return report(merge(args.merge))
    started = time.perf_counter()
    modes, tokenizer, target, plan = load_modes(args)
    cases = bundled_cases(args.prompts)
    cases += stdlib_cases(tokenizer, args.stdlib, args.seed)
    total, cases = len(cases), cases[args.part[0] - 1 :: args.part[1]]
    head = {
        "plan": {**plan.to_dict(), "date": ""},
        "dtype": str(target.compute_dtype),
        "model": args.model or "bundled",
        "kernels": args.kernels,
        "prompts": total,
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
    return report(judge(results.lines, len(cases), modes))


def report(problems: Sequence[str]) -> int:
    """Print them; the exit code."""
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "identical")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
