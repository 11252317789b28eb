"""Doubles for benchmarks: a clock that only moves when told, and a drafter with a price."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from dflash_suite.core.bench.options import BenchOptions
from dflash_suite.core.bench.runner import Bench
from dflash_suite.core.bench.types import Arm, BenchPrompt
from dflash_suite.core.block import Block, resolve_block
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.target.target import Target
from tests.kit.tiny import PieceDetokenizer, as_ids, make_target, prompt

PROMPT_TOKENS = 6
Answers = Mapping[tuple[int, ...], Sequence[int]]


@dataclass
class FakeClock:
    """Seconds since the start; `spend` lets time pass."""

    now: float = 0.0

    def __call__(self) -> float:
        """Read it."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass
class PricedDrafter:
    """Knows the answers, drafts `right` of them and then a wrong one, and takes its time.

    Each draft costs `price_sec` times 1 +- noise on the clock, each start `start_sec`;
    first_price_sec is added to the very first draft of all.
    """

    clock: FakeClock
    answers: Answers
    price_sec: float = 0.1
    start_sec: float = 0.05
    right: int = 2
    noise: float = 0.05
    seed: int = 0
    first_price_sec: float = 0.0
    name: str = "priced"
    tap_ids: tuple[int, ...] = ()
    context_rows: int | None = None
    position: int = 0
    _seen: list[int] = field(default_factory=list)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def block(self, options: GenerateOptions) -> Block:
        """A trained block of 5."""
        return resolve_block(5, options.block_size)

    def reset(self, position: int) -> None:
        """A new answer."""
        self.position = position
        self._seen = []
        self.clock.spend(self.start_sec)

    def observe(self, rows: TargetRows) -> None:
        """Remember what was read."""
        ids = as_ids(rows.token_ids)
        self._seen += ids
        self.position += len(ids)

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """`right` right ids, then the anchor, which a varied target does not repeat."""
        factor = 1 + self._random.uniform(-self.noise, self.noise)
        self.clock.spend(self.price_sec * factor + self.first_price_sec)
        self.first_price_sec = 0.0
        answer = self.answers[tuple(self._seen[:PROMPT_TOKENS])]
        following = list(answer[len(self._seen) - PROMPT_TOKENS + 1 :])[: self.right]
        drafts = following + as_ids(anchor) * count
        return mx.array(drafts[:count])

    def state(self) -> list[mx.array]:
        """Nothing lives on the device."""
        return []


@dataclass(frozen=True)
class World:
    """A tiny target, prompts, and what plain decoding says of them."""

    target: Target
    prompts: list[BenchPrompt]
    answers: dict[tuple[int, ...], list[int]]

    def bench(self, *arms: Arm, clock: FakeClock, repeats: int = 2, max_tokens: int = 16) -> Bench:
        """A benchmark without profile and widths."""
        options = BenchOptions(
            max_tokens=max_tokens, repeats=repeats, profile_prompts=0, width_repeats=0
        )
        return Bench(self.target, PieceDetokenizer, arms, self.prompts, options, clock)


def make_world(prompts: int = 8, tokens: int = 24) -> World:
    """A plain transformer that varies, and its greedy answers."""
    target = make_target("dense")
    made = [
        BenchPrompt(f"p{seed}", "tiny", tuple(prompt(PROMPT_TOKENS, seed=seed)))
        for seed in range(1, prompts + 1)
    ]
    answers = {}
    for one in made:
        options = GenerateOptions(max_tokens=tokens)
        generation = Generation(target, one.ids, PieceDetokenizer(), options=options)
        for _ in generation:
            pass
        answers[one.ids] = generation.emitter.token_ids
    return World(target, made, answers)


def arm(drafter: PricedDrafter | None, name: str = "priced", **settings: object) -> Arm:
    """An arm without a gate."""
    return Arm(name, drafter, None, GenerateOptions(gate=False), settings)


def finish(bench: Bench) -> Bench:
    """Run it to its end."""
    for _ in bench.run():
        pass
    return bench
