"""Show what each target pass yields: the tokens of a round between bars, as they arrive.

Run: python examples/stream.py ["some text"]
"""

from __future__ import annotations

import sys

import dflash_suite
from dflash_suite import Chunk, Finished, PrefillProgress


def main(prompt: str) -> None:
    """Stream one answer, one bar a round."""
    engine = dflash_suite.load(drafter="bundled:dflash")
    request = dflash_suite.Request(prompt, max_tokens=48, stop=("\nclass ",), gate=False)
    answer = engine.start(request)
    stats = answer.generation.stats
    for event in answer:
        if isinstance(event, PrefillProgress) and event.done == event.total:
            print(f"{event.total} prompt tokens in {stats.ttft_sec:.2f} s")
        elif isinstance(event, Chunk):
            print(event.text, end="|", flush=True)
        elif isinstance(event, Finished):
            print(f"\nfinished: {event.reason}, accept lengths {stats.accept_lengths}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "class Stack:\n")
