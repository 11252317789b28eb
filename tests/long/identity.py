"""Does speculation leave every token as it is? The bundled pair, in float32 on the CPU.

    python -m tests.long.identity [--prompts N] [--stdlib N] [--blocks 2,8] [--seed S]

For each prompt the ids of mlx-lm's stream_generate, of the suite's plain loop, and of both drafters
and the MTP head at every block must be the same, and where prompts.jsonl records a reference run
(block 8; MTP: 3 drafts, block 4), the accept length of every round too. The gate is off. Prompts
are those of prompts.jsonl, and pieces of the running interpreter's own standard library, cut at a
seed that is printed. Takes about 45 minutes whole; test_bundled_identity.py runs a part of it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_lm import load, stream_generate

from dflash_suite.core.decode.chat import encode_text
from dflash_suite.core.options import MAX_DRAFT_TOKENS, GenerateOptions, LoadOptions
from dflash_suite.core.stats import Chunk, GenerationStats
from dflash_suite.drafters.bundled.paths import PROMPTS_FILE, ROOT
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.pair import Pair, load_pair
from tests.kit.decoding import generate
from tests.kit.upstream_ring import RingDrafter

DRAFTERS = ("dflash", "dflash2")
MAX_TOKENS = 200
"""Length of the reference runs in prompts.jsonl."""
RECORDED = {"dflash": ("dflash", 8), "dflash2": ("dflash2", 8), "mtp": ("mtp3", 4)}
"""Name and block of each arm's reference run in prompts.jsonl."""
BLOCKS = (2, 3, 4, 5, 6, 7, 8)
STDLIB_BLOCKS = (7, 8)
"""The default block and the trained one: the prompts of the standard library run at these."""


@dataclass(frozen=True)
class Case:
    """One prompt; `plain_ids` and `accept_lengths` (by drafter) are empty where not on file."""

    name: str
    prompt_ids: tuple[int, ...]
    plain_ids: tuple[int, ...] = ()
    accept_lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass
class Tally:
    """What one arm (a drafter at a block, or plain decoding) did over all its prompts."""

    arm: str
    block: int
    prompts: int = 0
    tokens: int = 0
    rounds: int = 0
    emitted: int = 0
    full: int = 0
    partial: int = 0
    zero: int = 0
    seconds: float = 0.0
    ring: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def count(self, stats: GenerationStats) -> None:
        """Add one request."""
        self.prompts += 1
        self.rounds += stats.rounds
        self.emitted += stats.emitted
        self.full += sum(length == self.block for length in stats.accept_lengths)
        self.zero += sum(length == 1 for length in stats.accept_lengths)
        self.partial += sum(1 < length < self.block for length in stats.accept_lengths)

    def check_not_vacuous(self) -> None:
        """An arm that never drafted, never failed or never succeeded has shown nothing."""
        if self.rounds == 0:
            self.problems.append("no speculative round")
        kinds = {"full": self.full, "zero": self.zero}
        if self.block > 2:  # one draft is kept or not, nothing between
            kinds["partial"] = self.partial
        self.problems += [f"{kind} acceptance never occurred" for kind, n in kinds.items() if not n]


def bundled_cases(count: int | None = None, names: Sequence[str] = ()) -> list[Case]:
    """Prompts of prompts.jsonl: the first `count`, or those named."""
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.strip()]
    if names:
        records = [record for record in records if record["name"] in names]
    return [
        Case(
            record["name"],
            tuple(record["prompt_ids"]),
            tuple(record["plain_ids"]),
            {arm: record[name]["accept_lengths"] for arm, (name, _) in RECORDED.items()},
        )
        for record in records[:count]
    ]


def stdlib_cases(tokenizer: Any, count: int, seed: int) -> list[Case]:
    """`count` pieces of 40 to 600 characters from the interpreter's own sources."""
    source = random.Random(seed)
    root = Path(sysconfig.get_path("stdlib"))
    found = [*root.glob("*.py"), *root.glob("*/*.py")]
    files = sorted(path for path in found if "site-packages" not in path.parts)
    cases: list[Case] = []
    while len(cases) < count:
        file = source.choice(files)
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # some test files of the library are there to be undecodable
            continue
        start = source.randrange(len(text) + 1)
        piece = text[start : start + source.randrange(40, 600)]
        if piece.strip():
            name = f"{file.relative_to(root)}[{start}:{start + len(piece)}]"
            cases.append(Case(name, tuple(encode_text(tokenizer, piece))))
    return cases


def stock_ids(model: Any, tokenizer: Any, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """Greedy ids by mlx-lm's own stream_generate, eos included."""
    responses = stream_generate(model, tokenizer, list(prompt_ids), max_tokens=max_tokens)
    return [int(response.token) for response in responses]


def decode(pair: Pair, case: Case, block: int | None, max_tokens: int) -> tuple[list[int], Any]:
    """(ids, stats) of one request through the suite."""
    size: dict[str, int | None] = {"block_size": block}
    if block is not None and pair.route.route == "mtp":
        size = {"draft_tokens": block - 1}
    options = GenerateOptions(max_tokens=max_tokens, gate=False, **size)  # type: ignore[arg-type]
    run = generate(pair, case.prompt_ids, options)
    ids = [token for event in run if isinstance(event, Chunk) for token in event.token_ids]
    return ids, run.stats


def difference(found: Sequence[int], expected: Sequence[int], what: str) -> str | None:
    """Where two sequences part, or None."""
    if list(found) == list(expected):
        return None
    both = zip(found, expected, strict=False)
    index = next(
        (i for i, (one, two) in enumerate(both) if one != two), min(len(found), len(expected))
    )
    return (
        f"{what} differ at {index}: {list(found[index : index + 3])} for "
        f"{list(expected[index : index + 3])} (lengths {len(found)} and {len(expected)})"
    )


def plain_arm(
    model: Any, pair: Pair, cases: Sequence[Case], max_tokens: int
) -> tuple[Tally, list[list[int]]]:
    """mlx-lm, the suite without a drafter and the file must agree; returns mlx-lm's ids."""
    tally, references, started = Tally("none", 1), [], time.perf_counter()
    plain = replace(pair, drafter=None)
    for case in cases:
        reference = stock_ids(model, pair.tokenizer, case.prompt_ids, max_tokens)
        references.append(reference)
        ids, stats = decode(plain, case, None, max_tokens)
        tally.prompts, tally.tokens = tally.prompts + 1, tally.tokens + len(ids)
        found = [difference(ids, reference, "ids of none and of mlx-lm")]
        if case.plain_ids:
            found.append(difference(reference, case.plain_ids[:max_tokens], "ids and the file's"))
        if stats.rounds:
            found.append("plain decoding ran a speculative round")
        tally.problems += [f"{case.name}: {problem}" for problem in found if problem]
    tally.seconds = time.perf_counter() - started
    return tally, references


def drafter_arm(
    name: str,
    pair: Pair,
    block: int,
    cases: Sequence[Case],
    references: Sequence[Sequence[int]],
    max_tokens: int,
) -> Tally:
    """One drafter at one block against the plain ids, and the rounds against the file's."""
    tally, started = Tally(name, block), time.perf_counter()
    for case, reference in zip(cases, references, strict=True):
        ids, stats = decode(pair, case, block, max_tokens)
        tally.count(stats)
        tally.tokens += len(ids)
        found = [difference(ids, reference, "ids")]
        recorded = case.accept_lengths.get(name)
        if recorded and block == RECORDED[name][1] and max_tokens == MAX_TOKENS:
            apart = difference(stats.accept_lengths, recorded, "accept lengths")
            if apart and equal_with_ring(pair, case, block, recorded):
                tally.ring.append(case.name)
            else:
                found.append(apart)
        tally.problems += [f"{case.name}: {problem}" for problem in found if problem]
    tally.check_not_vacuous()
    tally.seconds = time.perf_counter() - started
    return tally


def equal_with_ring(pair: Pair, case: Case, block: int, recorded: Sequence[int]) -> bool:
    """Whether the reference's ring cache, and nothing else, makes its rounds differ: only where
    the context has outgrown the window, and only if every round is the recorded one with a ring.
    """
    drafter = pair.drafter
    rows = drafter.context_rows if isinstance(drafter, DFlashDrafter) else None
    if rows is None or len(case.prompt_ids) + sum(recorded) <= rows:
        return False
    assert isinstance(drafter, DFlashDrafter)
    ringed = replace(pair, drafter=RingDrafter.like(drafter))
    _, stats = decode(ringed, case, block, MAX_TOKENS)
    return list(stats.accept_lengths) == list(recorded)


def run(args: argparse.Namespace) -> Iterator[Tally]:
    """Every arm, as it ends."""
    pairs = {
        name: load_pair(
            LoadOptions(
                drafter=f"bundled:{name}", speculation="dflash", dtype="float32", drafter_bits=16
            )
        )
        for name in DRAFTERS
    }
    first = pairs[DRAFTERS[0]]
    model: Any = load(str(ROOT / "target"))[0]  # a second copy: nothing of the suite touches it
    model.set_dtype(first.target.compute_dtype)
    bundled = bundled_cases(args.prompts)
    cases = bundled + stdlib_cases(first.tokenizer, args.stdlib, args.seed)
    tally, references = plain_arm(model, first, cases, args.max_tokens)
    yield tally
    pairs["mtp"] = load_pair(LoadOptions(speculation="mtp", dtype="float32"))
    for name, pair in pairs.items():
        for block in args.blocks:
            if name == "mtp" and block > MAX_DRAFT_TOKENS + 1:
                continue
            count = len(cases) if block in STDLIB_BLOCKS else len(bundled)
            yield drafter_arm(name, pair, block, cases[:count], references[:count], args.max_tokens)


HEADER = "arm      block prompts tokens rounds  full partial  zero tokens/round   time problems"


def row(tally: Tally) -> str:
    """One line of the table."""
    per_round = f"{tally.emitted / tally.rounds:.3f}" if tally.rounds else "-"
    return (
        f"{tally.arm:8} {tally.block:5} {tally.prompts:7} {tally.tokens:6} {tally.rounds:6} "
        f"{tally.full:5} {tally.partial:7} {tally.zero:5} {per_round:>12} {tally.seconds:5.0f} s "
        f"{len(tally.problems):7}"
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, help="only the first N prompts of prompts.jsonl")
    parser.add_argument("--stdlib", type=int, default=20, help="pieces of the standard library")
    parser.add_argument(
        "--blocks",
        type=lambda text: tuple(int(item) for item in text.split(",")),
        default=BLOCKS,
        help="rows of a block, e.g. 2,8",
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where anything differed or an arm showed nothing."""
    args = parse(argv)
    print(f"standard library {sys.version.split()[0]}, seed {args.seed}")
    print(HEADER)
    problems = []
    for tally in run(args):
        print(row(tally), flush=True)
        problems += [f"{tally.arm} block {tally.block}: {text}" for text in tally.problems]
        if tally.ring:
            print(
                f"  {tally.prompts - len(tally.ring)} prompts have the recorded rounds; "
                f"{', '.join(tally.ring)} have them with the reference's ring cache alone "
                "(tests/kit/upstream_ring.py)"
            )
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "identical")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
