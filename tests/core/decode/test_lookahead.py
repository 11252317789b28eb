"""Pipelined plain decoding: the same ids, and caches as if no pass had been queued."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.lookahead import Lookahead
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.errors import CacheError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.target.target import Target
from tests.kit.tiny import PieceDetokenizer, assert_varied, make_target, prompt, with_eos

PROMPT = prompt(9)


def decode(target: Target, pipelined: bool, tokens: int = 70) -> Generation:
    options = GenerateOptions(max_tokens=tokens)
    generation = Generation(
        target, PROMPT, PieceDetokenizer(), options=options, setup=Setup(pipelined=pipelined)
    )
    for _ in generation:
        pass
    return generation


def same_caches(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.offset == b.offset
        if hasattr(a, "cache"):
            held = list(zip(a.cache, b.cache, strict=True))
        else:
            held = list(zip(a.keys_and_values(), b.keys_and_values(), strict=True))
        assert all(mx.array_equal(x, y) for x, y in held)


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_ids_counts_and_caches_are_those_of_waiting(kind: Any) -> None:
    target = make_target(kind)
    ahead, waiting = decode(target, True), decode(target, False)
    assert_varied(ahead.emitter.token_ids)
    assert ahead.emitter.token_ids == waiting.emitter.token_ids
    assert ahead.stats.target_passes == waiting.stats.target_passes
    assert ahead.position == waiting.position
    same_caches(ahead.cache, waiting.cache)


def test_a_pass_past_eos_is_taken_back() -> None:
    target = make_target("hybrid")
    eos = decode(target, False, 20).emitter.token_ids[12]
    stopping = with_eos(target, [eos])
    ahead, waiting = decode(stopping, True), decode(stopping, False)
    assert ahead.emitter.reason == "stop"
    assert ahead.emitter.token_ids == waiting.emitter.token_ids
    assert ahead.ahead.rows == 0
    same_caches(ahead.cache, waiting.cache)


def test_closing_between_events_takes_the_queued_pass_back() -> None:
    target = make_target("hybrid")
    generation = Generation(target, PROMPT, PieceDetokenizer(), setup=Setup(pipelined=True))
    events = iter(generation)
    for _ in range(8):
        next(events)
    assert generation.ahead.rows == 1
    events.close()
    emitted = len(generation.emitter.token_ids)
    waiting = decode(target, False, emitted)
    assert emitted > 3
    assert waiting.emitter.token_ids == generation.emitter.token_ids
    same_caches(generation.cache, waiting.cache)


def test_a_second_pass_is_not_queued_over_the_first() -> None:
    target = make_target("hybrid")
    ahead = Lookahead(target, target.make_cache())
    ahead.step(mx.array([3]), more=True)
    with pytest.raises(CacheError, match="queued already"):
        ahead.queue(mx.array([4]))
    assert ahead.rows == 1


def test_the_cpu_waits_unless_told_otherwise() -> None:
    assert not Generation(make_target("hybrid"), PROMPT, PieceDetokenizer()).pipelined
