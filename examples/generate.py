"""Answer one prompt with the bundled pair and check it against plain decoding.

Run: python examples/generate.py ["some text"]
"""

from __future__ import annotations

import sys

import dflash_suite


def main(prompt: str) -> None:
    """Print the answer, how it was made, and whether plain decoding gives the same ids."""
    engine = dflash_suite.load()  # or dflash_suite.load("owner/target", "owner/drafter")
    found = engine.complete(dflash_suite.Request(prompt, max_tokens=64, gate=False))
    print(prompt + found.text)
    plain = engine.complete(dflash_suite.Request(prompt, max_tokens=64, speculation="none"))
    same = plain.token_ids == found.token_ids
    print(
        f"\n{found.route.route}: {found.stats.tokens_per_round:.2f} tokens/round, "
        f"{found.stats.target_passes} target passes for {found.stats.emitted} tokens; "
        f"ids equal to plain decoding: {same}",
        file=sys.stderr,
    )
    if not same:
        raise SystemExit("the ids differ: this is a bug, please report it")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "def fibonacci(n):\n")
