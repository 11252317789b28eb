"""From measured costs and acceptance to tokens a second by block, and the block to use.

Pure arithmetic: a round of b rows takes a draft of b - 1 tokens and a pass of b rows, and emits
1 + the sum of the survivals of its drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from .acceptance import AcceptCurve
from .costs import ContextCosts


@dataclass(frozen=True)
class BlockForecast:
    """One block at one context.

    tokens_per_round: expected; measured: from answers at this very block, else from those at a
    larger one; break_even: tokens a round must emit to be no slower than plain steps; speedup:
    tokens_per_round over that.
    """

    context: int
    block: int
    tokens_per_round: float
    measured: bool
    round_sec: float
    tokens_per_second: float
    break_even: float

    @property
    def speedup(self) -> float:
        """Predicted speed over plain decoding."""
        return self.tokens_per_round / self.break_even

    def to_dict(self) -> dict[str, Any]:
        """An entry of `forecast` in the doctor's JSON document."""
        return {**asdict(self), "speedup": self.speedup}


def forecast(
    costs: ContextCosts, drafter: str, profiles: Mapping[int, AcceptCurve]
) -> list[BlockForecast]:
    """Every block whose draft and pass were timed; profiles: by block, the largest among them."""
    found = []
    for block, draft_sec in sorted(costs.draft_sec[drafter].items()):
        if block not in costs.pass_sec:
            continue
        nearest = min(known for known in profiles if known >= block)
        tokens = profiles[nearest].expected_tokens(block)
        round_sec = draft_sec + costs.pass_sec[block]
        found.append(
            BlockForecast(
                costs.context,
                block,
                tokens,
                nearest == block,
                round_sec,
                tokens / round_sec,
                round_sec / costs.plain_sec,
            )
        )
    return found


def best_block(forecasts: Sequence[BlockForecast]) -> int:
    """The block with the best speed-up over all contexts together (their geometric mean)."""
    by_block: dict[int, list[float]] = {}
    for one in forecasts:
        by_block.setdefault(one.block, []).append(one.speedup)
    return max(by_block, key=lambda block: (prod(by_block[block]), -block))


def settle(
    costs: Sequence[ContextCosts],
    drafter: str,
    largest: int,
    measure: Callable[[int], AcceptCurve],
) -> tuple[dict[int, AcceptCurve], list[BlockForecast], int]:
    """(profiles, forecasts, best block), measuring as few blocks as it takes.

    A drafter was trained at its largest block, and a shorter one may be drafted otherwise: so the
    block that looks best is measured too, until the best one has been.
    """
    profiles = {largest: measure(largest)}
    while True:
        forecasts = [one for cost in costs for one in forecast(cost, drafter, profiles)]
        best = best_block(forecasts)
        if best in profiles:
            return profiles, forecasts, best
        profiles[best] = measure(best)
