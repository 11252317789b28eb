"""A long conversation's second turn against a cold run, and 500 turns in a full bank.

The target is a tiny random hybrid: what is measured is how many tokens are not fed again.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from dflash_suite.core.cache.bank import Bank
from dflash_suite.drafters.engine import Engine
from tests.drafters.test_prefixes import answered, cold, talking, turn, user
from tests.long.request_lines import peak_bytes

POSITIONS = 16_384
FIRST_TOKENS, MORE_TOKENS = 8000, 300
REPEATS = 3
SOONER = 10.0
"""The second turn's first token, against a cold run's."""
TURNS, WARM_TURNS = 500, 200
MAY_GROW_BYTES = 16 * 2**20


def with_positions(engine: Engine, positions: int) -> Engine:
    """Its target states so many."""
    raw = {**engine.target.config.raw, "max_position_embeddings": positions}
    engine.target.config = replace(engine.target.config, raw=raw)
    return engine


def second_turn(engine: Engine) -> bool:
    """Print how much sooner a second turn's first token comes; whether it is as it must be."""
    ratios, right = [], True
    for number in range(REPEATS):
        opening = [user(f"{number} " + "word " * ((FIRST_TOKENS - 12) // 5))]
        first = engine.complete(turn(opening, max_tokens=16))
        both = [*opening, answered("fine"), user("x" * MORE_TOKENS)]
        warm = engine.complete(turn(both, max_tokens=16))
        alone = cold(engine, turn(both, max_tokens=16))
        taken = warm.stats.reused_tokens
        right &= taken == first.stats.prompt_tokens - len("think:")
        right &= warm.token_ids == alone.token_ids and warm.stats.accepts == alone.stats.accepts
        assert warm.stats.ttft_sec is not None and alone.stats.ttft_sec is not None
        ratios.append(alone.stats.ttft_sec / warm.stats.ttft_sec)
        print(
            f"{warm.stats.prompt_tokens} prompt tokens, {taken} of them in the bank: first token "
            f"after {warm.stats.ttft_sec:.3f} s, cold {alone.stats.ttft_sec:.3f} s"
        )
    print(f"sooner by {statistics.median(ratios):.1f} (from {min(ratios):.1f} on)")
    return right and min(ratios) >= SOONER


def many_turns(engine: Engine, turns: int = TURNS, warm_turns: int = WARM_TURNS) -> bool:
    """Print what a full bank holds over many turns of several conversations."""
    engine.bank = Bank()
    engine.complete(turn([user("0" * 200)]))
    limit = 3 * engine.bank.size_bytes
    engine.bank = Bank(limit)
    chats = [[user(f"{number}: " + "a" * 50)] for number in range(4)]
    held, reused = [], 0
    for number in range(turns):
        messages = chats[number % len(chats)]
        done = engine.complete(turn(messages, max_tokens=2, speculation="none"))
        reused += done.stats.reused_tokens > 0
        assert engine.bank.size_bytes <= limit
        held.append((mx.get_active_memory(), peak_bytes()))
        messages += [answered("so"), user("and then?")]
        if len(messages) > 20:
            messages[:] = [user(f"{number}, anew: " + "b" * 50)]
    grown = [after - before for before, after in zip(held[warm_turns], held[-1], strict=True)]
    counts = engine.bank.counts
    size, mib = engine.bank.size_bytes, 2**20
    print(
        f"{turns} turns, {reused} of them from the bank, {counts.evicted} times something gave "
        f"way; after turn {warm_turns} MLX holds {grown[0] / mib:.2f} MB more, and the process's "
        f"peak grew by {grown[1] / mib:.2f} MB; the bank has {size / mib:.2f} of "
        f"{limit / mib:.2f} MB"
    )
    return reused > turns // 2 and counts.evicted > 0 and max(grown) <= MAY_GROW_BYTES


def main() -> int:
    """1 where something is not as it must be."""
    with tempfile.TemporaryDirectory() as directory:
        engine = with_positions(talking(Path(directory), "hybrid"), POSITIONS)
        engine.keep_prefixes()
        soon = second_turn(engine)
        flat = many_turns(engine)
    return int(not (soon and flat))


if __name__ == "__main__":
    sys.exit(main())
