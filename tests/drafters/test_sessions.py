"""Generations side by side over one loaded target and its drafters: each as if it were alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.cache.bank import Bank
from dflash_suite.core.decode.drafter import Drafter, SharedDrafter, session_of
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.stats import Chunk, Event
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.engine import Engine, take_turns
from dflash_suite.drafters.request import Completion, Request
from tests.kit.tiny import PieceDetokenizer, make_target, prompt
from tests.kit.tiny_drafter import make_drafter
from tests.kit.tiny_mtp import tiny_head

SCHEDULES = 2
"""Of each kind of target; `long/schedules.py` runs 200."""
BANK_BYTES = 400_000
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 12,
}
KINDS = ("hybrid", "sliding", "dense")


class Pieces:
    """A tokenizer of which nothing but its detokenizer is asked."""

    @property
    def detokenizer(self) -> PieceDetokenizer:
        return PieceDetokenizer()


def make_engine(directory: Path, kind: str) -> Engine:
    """A tiny target with random drafters, and an MTP head where it has one."""
    drafters: list[Drafter] = []
    if kind == "hybrid":
        target, head = tiny_head(directory / "target")
        drafters.append(head)
    elif kind == "sliding":
        target = make_target("llama", **SLIDING)
    else:
        target = make_target("dense")
    drafters.insert(0, make_drafter(directory / "drafter", "dflash2", ends=target))
    return Engine(target, Pieces(), drafters)


def requests(seed: int, modes: Sequence[Any], count: int = 4) -> list[Request]:
    """Prompts that begin alike or not, greedy and drawn, of every mode; some go on from another."""
    chance, made = random.Random(seed), []
    for number in range(count):
        ids = prompt(chance.randrange(2, 40), seed=chance.randrange(3))
        sampling = SamplingOptions(temperature=0.8, seed=number) if chance.random() < 0.4 else None
        made.append(
            Request(
                ids,
                max_tokens=chance.randrange(1, 16),
                sampling=sampling or SamplingOptions(),
                speculation=chance.choice(modes),
                block_size=chance.choice([None, 2, 4]),
                gate=False,
            )
        )
    return made


@dataclass
class Alive:
    """One answer on its way, and what it must become."""

    events: Iterator[Event]
    token_ids: list[int]
    expected: Completion


def run_schedule(engine: Engine, alone: Engine, seed: int, modes: Sequence[Any]) -> int:
    """Begin, advance and leave answers in a random order; returns how often two were alive.

    Every other schedule has a bank of prefixes, which soon is full.
    """
    chance, waiting = random.Random(seed), requests(seed, modes)
    engine.bank = Bank(BANK_BYTES if seed % 2 else None)
    alive: list[Alive] = []
    together = 0
    while waiting or alive:
        together += len(alive) > 1
        if waiting and (not alive or chance.random() < 0.3):
            request = waiting.pop()
            expected = fresh(alone).complete(request)
            alive.append(Alive(iter(engine.start(request)), [], expected))
            continue
        one = chance.choice(alive)
        event = next(one.events, None)
        if isinstance(event, Chunk):
            one.token_ids += event.token_ids
        if event is None:
            assert one.token_ids == one.expected.token_ids
            alive.remove(one)
        elif chance.random() < 0.02:  # nobody wants the rest
            assert one.expected.token_ids[: len(one.token_ids)] == one.token_ids
            close: Any = one.events
            close.close()
            alive.remove(one)
    return together


def fresh(engine: Engine) -> Engine:
    return Engine(engine.target, engine.tokenizer, engine.drafters)


def modes_of(kind: str) -> list[str]:
    return ["auto", "dflash", "none", *(["mtp"] if kind == "hybrid" else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_interleaved_answers_are_those_of_requests_alone(kind: str, tmp_path: Path) -> None:
    engine = make_engine(tmp_path, kind)
    together = [
        run_schedule(engine, fresh(engine), seed, modes_of(kind)) for seed in range(SCHEDULES)
    ]
    assert sum(together) > 20 * SCHEDULES


def test_turns_are_fair_and_every_answer_ends(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "hybrid")
    asked = [Request(prompt(9, seed=n), max_tokens=12, speculation="none") for n in range(3)]
    alone = [fresh(engine).complete(request).token_ids for request in asked]
    answers = [engine.start(request) for request in asked]
    order = [answers.index(answer) for answer, _ in take_turns(answers)]
    assert order[:9] == [0, 1, 2] * 3, "one event of each in turn"
    assert [answer.completion().token_ids for answer in answers] == alone
    assert all(answer.generation.over for answer in answers)


def test_leaving_the_turns_ends_all(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "dense")
    answers = [engine.start(Request(prompt(9), max_tokens=12)) for _ in range(2)]
    for seen, _ in enumerate(take_turns(answers)):
        if seen == 9:
            break
    assert [answer.generation.over for answer in answers] == [True, True]
    assert all(answer.generation.settled for answer in answers)


def test_rows_of_an_answer_that_is_alive_are_copied(tmp_path: Path) -> None:
    """They were taken from under it: the older answer went on in the newer one's caches."""
    engine = make_engine(tmp_path, "dense")
    first = Request(prompt(20), max_tokens=20, gate=False, speculation="none")
    expected = fresh(engine).complete(first).token_ids
    answer = engine.start(first)
    events = iter(answer)
    while len(answer.generation.emitter.token_ids) < 8:
        next(events)
    ids = [*prompt(20), *answer.generation.emitter.token_ids, 5]
    other = engine.complete(Request(ids, max_tokens=6, gate=False, speculation="none"))
    assert other.stats.reused_tokens == 20, "the prompt's, where its end is marked"
    assert other.token_ids == fresh(engine).complete(Request(ids, max_tokens=6)).token_ids
    assert sum(1 for _ in events) > 5 and answer.completion().token_ids == expected


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "mtp"])
def test_sessions_share_weights_and_nothing_else(kind: Any, tmp_path: Path) -> None:
    target, head = tiny_head(tmp_path / "target")
    drafter: Any = head if kind == "mtp" else make_drafter(tmp_path / "d", kind, ends=target)
    assert is_shared(drafter)
    session: Any = session_of(drafter)
    assert session.model is drafter.model and session is not drafter
    run = engine_run(target, drafter)
    assert run.stats.rounds > 0 and drafter.position == 0
    assert not any(array.size > drafter.model.norm.weight.size for array in drafter.state())


def is_shared(drafter: object) -> bool:
    return isinstance(drafter, SharedDrafter)


def engine_run(target: Target, drafter: Drafter) -> Completion:
    mode: Any = "mtp" if drafter.name == "mtp" else "dflash"
    engine = Engine(target, Pieces(), [drafter])
    return engine.complete(Request(prompt(12), max_tokens=20, speculation=mode, gate=False))
