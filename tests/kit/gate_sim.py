"""A decode loop without a model: the gate against scripted accept lengths and a clock of steps.

Time is counted in plain steps. A speculative round costs `round_cost(rows)` and emits what the
script says, cut to the rows that the gate allows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dflash_suite.core.decode.gate import PLAIN, Gate, GateMemory, GateSettings


class Clock:
    """Time that only moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Source:
    """One drafter: its full block, what a round of so many rows costs, and tokens per round."""

    rows: int
    round_cost: Callable[[int], float]
    lengths: Iterable[int]

    def __post_init__(self) -> None:
        self._lengths: Iterator[int] = itertools.cycle(self.lengths)

    def next_length(self, rows: int) -> int:
        return min(next(self._lengths), rows)


@dataclass
class Simulation:
    """What a simulated request did; `routes` holds the route of each round."""

    tokens: int = 0
    sec: float = 0.0
    routes: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.routes)

    @property
    def speed(self) -> float:
        """Tokens per plain step's time: 1.0 is plain decoding."""
        return self.tokens / self.sec


def simulate(
    sources: Mapping[str, Source],
    tokens: int,
    *,
    adaptive: bool = True,
    cold_sec: float = 0.0,
    settings: GateSettings | None = None,
    memory: GateMemory | None = None,
) -> Simulation:
    """Run the gate until `tokens` are emitted. cold_sec: extra time of the very first step;
    memory: that of the requests before."""
    clock, result = Clock(), Simulation()
    rows = {name: source.rows for name, source in sources.items()}
    gate = Gate(rows, clock, settings, memory)
    extra = cold_sec
    while result.tokens < tokens:
        route = gate.route
        gate.start()
        if route == PLAIN:
            clock.now += 1.0 + extra
            emitted, drafts = 1, 0
        else:
            source = sources[route]
            most = source.rows - 1
            drafts = gate.draft_limit(most) if adaptive else most
            clock.now += source.round_cost(drafts + 1)
            emitted = source.next_length(drafts + 1)
        extra = 0.0
        gate.finish(emitted, drafts)
        result.tokens += emitted
        result.routes.append(route)
        result.rows.append(drafts + 1)
    result.sec = clock.now
    return result
