"""Decode one prompt with the bundled pair and check it against plain decoding.

Run: python examples/generate.py ["some text"]
"""

from __future__ import annotations

import sys

import dflash_suite
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.results import Chunk


def main(prompt: str) -> None:
    """Print the answer, how it was made, and whether plain decoding gives the same ids."""
    options = GenerateOptions(max_tokens=64, gate=False)
    pair = dflash_suite.load()  # or dflash_suite.load("owner/target", "owner/drafter")
    generation = pair.generate(prompt, options)
    text = "".join(event.text for event in generation if isinstance(event, Chunk))
    print(prompt + text)

    plain = dflash_suite.load(speculation="none").generate(prompt, options)
    for _ in plain:
        pass
    same = plain.emitter.token_ids == generation.emitter.token_ids
    print(
        f"\n{pair.route.route}: {generation.stats.tokens_per_round:.2f} tokens/round, "
        f"{generation.stats.target_passes} target passes for {generation.stats.emitted} tokens; "
        f"ids equal to plain decoding: {same}",
        file=sys.stderr,
    )
    if not same:
        raise SystemExit("the ids differ: this is a bug, please report it")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "def fibonacci(n):\n")
