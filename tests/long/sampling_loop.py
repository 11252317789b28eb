"""Sampling through the whole loop against the exact distribution of its first tokens.

    python -m tests.long.sampling_loop [--draws 5000]

A tiny random target with a vocabulary of 8, sampled at a temperature with top-k, drafted by a
random DFlash, DFlash2 and MTP head: the counts of every sequence of three tokens against the
product of plain probabilities, by chi-square. Also 30 mixed requests in one process against 30
fresh ones (--fresh). Exit 1 where a statistic passes what chance passes once in a million.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.sampling import target_probs
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.target.target import Target
from tests.kit.chance import critical
from tests.kit.small_vocabulary import KINDS, PROMPT_IDS, small_pair
from tests.kit.tiny import PieceDetokenizer

TOKENS, TOP_K = 3, 3
MIN_EXPECTED = 5.0
"""Rarer sequences are counted together, as the test asks."""


def exact(target: Target, sampling: SamplingOptions) -> dict[tuple[int, ...], float]:
    """Probability of each sequence of TOKENS ids, by plain forwards."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for ids, mass in found.items():
            fed = mx.array([[*PROMPT_IDS, *ids]])
            hidden = target.forward_with_taps(fed, target.make_cache()).hidden[:, -1:]
            probs = np.array(target_probs(target.logits_from_hidden(hidden)[0], sampling))[0]
            longer |= {
                (*ids, token): mass * float(share) for token, share in enumerate(probs) if share > 0
            }
        found = longer
    return found


def drafters() -> list[tuple[Target, Drafter]]:
    """(target, drafter) of each kind, at a vocabulary of a few tokens."""
    directory = Path(tempfile.mkdtemp())
    return [small_pair(directory / kind, kind) for kind in KINDS]


def statistic(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square over its critical value, rare sequences in one cell."""
    draws = counts.total()
    assert set(counts) <= set(expected), "a sequence that plain sampling cannot draw"
    rare = [ids for ids, mass in expected.items() if mass * draws < MIN_EXPECTED]
    cells = [(counts[ids], mass * draws) for ids, mass in expected.items() if ids not in rare]
    if rare:
        cells.append((sum(counts[ids] for ids in rare), sum(expected[ids] for ids in rare) * draws))
    value = sum((found - wanted) ** 2 / wanted for found, wanted in cells if wanted > 0)
    return value / critical(len(cells) - 1)


def sample(target: Target, drafter: Drafter | None, draws: int) -> tuple[float, str]:
    """(statistic, a line about the run) of one route."""
    counts: Counter[tuple[int, ...]] = Counter()
    rounds = accepted = drafted = 0
    expected = exact(target, SamplingOptions(temperature=0.9, top_k=TOP_K))
    for seed in range(draws):
        sampling = SamplingOptions(temperature=0.9, top_k=TOP_K, seed=seed)
        options = GenerateOptions(max_tokens=TOKENS, gate=False, sampling=sampling)
        run = Generation(
            target, PROMPT_IDS, PieceDetokenizer(None), drafter=drafter, options=options
        )
        for _ in run:
            pass
        counts[tuple(run.emitter.token_ids)] += 1
        rounds, accepted = rounds + run.stats.rounds, accepted + run.stats.accepted
        drafted += run.stats.drafted
    name = drafter.name if drafter is not None else "none"
    if drafter is not None:
        assert rounds > 0 and 0 < accepted < drafted, "nothing was accepted, or nothing refused"
    value = statistic(counts, expected)
    line = f"{name:8} {draws} draws, {len(counts)} of {len(expected)} sequences, {rounds} rounds, "
    return value, line + f"{accepted} of {drafted} drafts kept: {value:.2f} of the critical value"


def mixed_requests() -> list[dict[str, Any]]:
    """30 requests of every kind for the bundled pair."""
    texts = ["def f(x):\n", "class Stack:\n", "import os\n", "for i in range(3):\n", "x = [\n"]
    wishes: list[dict[str, Any]] = [
        {"speculation": "dflash"},
        {"speculation": "mtp", "draft_tokens": 4},
        {"speculation": "none"},
        {"temperature": 0.9, "seed": 3},
        {"repetition_penalty": 1.2, "stop": "self"},
        {"block_size": 3, "max_tokens": 9},
    ]
    pairs = itertools.product(texts, wishes)
    return [{"prompt": text, "max_tokens": 16, **wish} for text, wish in pairs]


def serve(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of one `dflash generate --requests -` process."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    command = [sys.executable, "-m", "dflash_suite.cli", "generate", "--no-gate", "--requests", "-"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def fresh_processes() -> bool:
    """Whether 30 requests in one process equal 30 fresh processes."""
    requests = mixed_requests()
    together = serve(requests)
    alone = [serve([request])[0] for request in requests]
    keys = ("text", "token_ids", "finish_reason", "speculation")
    same = sum(
        all(one[key] == other[key] for key in keys)
        for one, other in zip(together, alone, strict=True)
    )
    print(f"{same} of {len(requests)} requests in one process equal those of fresh processes")
    return same == len(requests) == 30


def main() -> int:
    """Run what was asked for; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--fresh", action="store_true", help="only the 30 requests")
    args = parser.parse_args()
    if args.fresh:
        return 0 if fresh_processes() else 1
    worst = 0.0
    found = drafters()
    for target, drafter in [(found[0][0], None), *found]:
        value, line = sample(target, drafter, args.draws)
        print(line, flush=True)
        worst = max(worst, value)
    print("the target's distribution" if worst < 1 else "NOT the target's distribution")
    return 0 if worst < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
