"""The passes that a prompt is fed in: short enough to be watched where their number is free."""

from __future__ import annotations

import itertools

import pytest

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.prefill_steps import AIM_SEC, FIRST_TOKENS, PrefillSteps
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.stats import PrefillProgress
from tests.kit.gate_sim import Clock
from tests.kit.snapshots import assert_as_fed_alone
from tests.kit.tiny import Kind, PieceDetokenizer, Precision, make_target, prompt


def fed(most: int, total: int, sec_per_token: float, *, timed: bool = True) -> list[int]:
    """The passes of a prompt's body on a device of that speed."""
    clock, passes = Clock(), []
    steps = PrefillSteps(most, clock if timed else None)
    while total:
        count = steps.next(total)
        clock.now += count * sec_per_token
        steps.finish(count)
        passes.append(count)
        total -= count
    return passes


@pytest.mark.quick
@pytest.mark.parametrize("sec_per_token", [1e-6, 1e-4, 0.002, 0.1, 2.0])
def test_passes_come_to_last_as_long_as_is_aimed_at(sec_per_token: float) -> None:
    passes = fed(2048, 20_000, sec_per_token)
    assert sum(passes) == 20_000 and passes[0] == FIRST_TOKENS and max(passes) <= 2048
    expected = max(1, min(2048, int(AIM_SEC / sec_per_token)))
    assert all(abs(count - expected) <= 1 for count in passes[6:-1])


@pytest.mark.quick
def test_elsewhere_they_are_as_wide_as_asked() -> None:
    assert fed(2048, 5000, 2.0, timed=False) == [2048, 2048, 904]
    assert fed(100, 250, 1e-6) == [100, 100, 50]
    assert fed(2048, 600, 0.0) == [256, 256, 88], "a clock that stands still says nothing"


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_they_change_no_bit_and_progress_is_seen(kind: Kind, precision: Precision) -> None:
    """On a clock by which a pass takes some seconds; against mlx-lm's one pass for all."""
    target, ids, seconds = make_target(kind, precision), prompt(300), itertools.count()
    made = Generation(
        target,
        ids,
        PieceDetokenizer(),
        options=GenerateOptions(max_tokens=4, gate=False),
        setup=Setup(clock=lambda: float(next(seconds))),
    )
    seen = [event.done for event in made if isinstance(event, PrefillProgress)]
    assert seen == [0, 256, 299, 300]
    kept = [*ids, *made.emitter.token_ids[:-1]]
    assert_as_fed_alone(made.cache, target.backbone.model, kept, len(ids))


def test_a_ring_is_fed_as_mlx_lm_feeds_it() -> None:
    """Its keys stand in the order in which the passes left them."""
    options = GenerateOptions(max_tokens=2, gate=False)
    target = make_target(
        "llama", sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2
    )
    made = Generation(target, prompt(300), PieceDetokenizer(), options=options)
    assert [event.done for event in made if isinstance(event, PrefillProgress)] == [0, 299, 300]
