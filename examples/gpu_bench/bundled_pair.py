"""Figure f and the ids: the bundled pair with its real acceptance.

python examples/gpu_bench/bundled_pair.py --dtype bfloat16
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import mlx_lm
from results import FILE, merge, summarize

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.drafters.bundled.paths import PROMPTS_FILE, ROOT
from dflash_suite.drafters.pair import Pair, load_pair

PROMPTS, TOKENS, UPSTREAM_PROMPTS = 20, 128, 4


def main() -> None:
    """20 prompts, plain and DFlash2 in turn; upstream on the first 4 where it is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--results", type=Path, default=FILE)
    given = parser.parse_args()
    pair = load_pair(LoadOptions(speculation="dflash", dtype=given.dtype, kernels="auto"))
    bare = Pair(pair.target, pair.tokenizer, None, pair.route)
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()[:PROMPTS]
    prompts = [json.loads(line)["prompt_ids"] for line in lines]
    upstream = Upstream() if given.dtype == "bfloat16" else None
    for request in (bare, pair):
        decode(request, prompts[0])
    ratios: list[float] = []
    over_upstream: list[float] = []
    lengths: list[float] = []
    differing, tokens = 0, 0
    for ids in prompts:
        plain, fast = decode(bare, ids), decode(pair, ids)
        same = plain[1] == fast[1]
        differing += not same
        tokens += len(plain[1])
        ratios.append(fast[0] / plain[0])
        lengths.append(fast[2])
        if upstream is not None and upstream.ready and len(over_upstream) < UPSTREAM_PROMPTS:
            over_upstream.append(fast[0] / upstream.speed(ids))
    suffix = "" if given.dtype == "bfloat16" else "-f32"
    goal = 2.0 if given.dtype == "bfloat16" else None
    rows = [
        summarize(f"{'f' if goal else 'x-f'}-plain{suffix}", ratios, goal, "higher"),
        summarize(f"x-bundled-accept-length{suffix}", lengths, better="higher"),
        summarize(f"x-bundled-prompts-differing-of-{PROMPTS}{suffix}", [differing]),
        summarize(f"x-bundled-tokens-compared{suffix}", [tokens]),
    ]
    if not over_upstream:
        print("f-upstream is left out: `dflash` is not importable, or not in this precision")
    else:
        rows.append(summarize("f-upstream", over_upstream, 1.8, "higher"))
    merge(given.results, rows)


def decode(pair: Pair, ids: list[int], repeats: int = 3) -> tuple[float, list[int], float]:
    """(tokens a second after the first, ids, tokens a round) of one prompt; median speed."""
    options = GenerateOptions(max_tokens=TOKENS, gate=False)
    speeds: list[float] = []
    for _ in range(repeats):
        generation = Generation(pair.target, ids, pair.tokenizer.detokenizer, pair.drafter, options)
        for _event in generation:
            pass
        speeds.append(generation.stats.tokens_per_second or 0.0)
    return median(speeds), generation.emitter.token_ids, generation.stats.tokens_per_round or 0.0


class Upstream:
    """`dflash` 0.1.0 on the same files, if it is importable (its MLX backend)."""

    def __init__(self) -> None:
        self.ready = False
        try:
            module: Any = importlib.import_module("dflash.model_mlx")
        except ImportError:
            return
        self._module = module
        module.snapshot_download = lambda name, **_: name  # its hub download, for a directory
        loaded: Any = mlx_lm.load(str(ROOT / "target"))
        self._model, self._tokenizer = loaded[0], loaded[1]
        self._draft = module.load_draft(str(ROOT / "dflash2"))
        self.ready = True
        self.speed([1, 2, 3])

    def speed(self, ids: list[int]) -> float:
        """Tokens a second after the first chunk, best of two runs."""
        best = 0.0
        for _ in range(2):
            first = 0.0
            count = 0
            stream = self._module.stream_generate(
                self._model, self._draft, self._tokenizer, ids, max_tokens=TOKENS, temperature=0.0
            )
            for chunk in stream:
                if not first:
                    first = time.perf_counter()
                    continue
                count += len(chunk.tokens)
            best = max(best, count / (time.perf_counter() - first)) if count else best
        return best


if __name__ == "__main__":
    main()
