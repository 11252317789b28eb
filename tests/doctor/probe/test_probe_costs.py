"""What a probe times leaves no trace, and its arithmetic from costs to the best block is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.cache.kinds import fork_cache
from dflash_suite.core.cache.layer_caches import held_rows
from dflash_suite.core.cache.place import come_back, take_place
from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget
from dflash_suite.core.target.target import Target
from dflash_suite.doctor.probe.acceptance import AcceptCurve, plain_answers
from dflash_suite.doctor.probe.costs import (
    ContextCosts,
    CostOptions,
    Timed,
    interleave,
    measure_costs,
    relative_costs,
    seeded_ids,
)
from dflash_suite.doctor.probe.forecast import best_block, forecast, settle
from tests.kit.scripted import ScriptedDrafter, all_right, all_wrong, wrong_at
from tests.kit.snapshots import whole
from tests.kit.tiny import VOCAB, Kind, PieceDetokenizer, make_target, prompt, stock_greedy
from tests.kit.tiny_drafter import make_drafter
from tests.kit.tiny_mtp import tiny_head

SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 12,
}
KINDS = [("hybrid", {}), ("dense", {}), ("llama", SLIDING)]


def same_rows(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Bit for bit, what the next token would see of both caches."""
    return all(
        mx.array_equal(one, other)
        for a, b in zip(left, right, strict=True)
        for one, other in zip(held_rows(a), held_rows(b), strict=True)
    )


@pytest.mark.parametrize(("kind", "changes"), KINDS, ids=str)
@pytest.mark.parametrize("context", [5, 30])
def test_a_lasting_place_brings_all_back(kind: Kind, changes: dict[str, Any], context: int) -> None:
    """After blocks, single rows and a wrapped ring, more than once."""
    target = make_target(kind, **changes)
    cache = target.make_cache()
    target.forward_with_taps(mx.array([prompt(context)]), cache)
    before, place = fork_cache(cache), take_place(cache, lasting=True)
    for widths in ([4, 1, 1], [1] * 15, [16, 7]):
        for width in widths:
            target.forward_with_taps(seeded_ids(width, VOCAB, width)[None], cache)
        assert not same_rows(cache, before)
        come_back(cache, place)
        assert same_rows(cache, before)
        assert [layer.offset for layer in cache] == [context] * len(cache)
    following = mx.array([prompt(3, seed=9)])
    left = target.forward_with_taps(following, cache).hidden
    assert mx.array_equal(left, target.forward_with_taps(following, before).hidden)


@pytest.mark.parametrize(("kind", "changes"), KINDS, ids=str)
def test_timing_leaves_caches_and_drafters_as_they_were(
    kind: Kind, changes: dict[str, Any], tmp_path: Path
) -> None:
    target = make_target(kind, **changes)
    timed = Timed(target, 20, {"dflash2": (make_drafter(tmp_path, ends=target), 6)}, lambda: 0.0)
    drafter: Any = timed._drafters["dflash2"]  # a session of its own
    before, position = fork_cache(timed._cache), drafter.position
    drafts = drafter.draft(mx.array([7]), 5)
    calls: list[Callable[[], float]] = [
        lambda: timed.verify(1),
        lambda: timed.verify(5),
        lambda: timed.draft("dflash2", 2),
        lambda: timed.draft("dflash2", 6),
        lambda: timed.plain(3),
    ]
    for call in calls:
        assert call() == 0.0
        assert same_rows(timed._cache, before) and drafter.position == position == 20
    assert mx.array_equal(drafter.draft(mx.array([7]), 5), drafts)
    assert drafter.context_lengths == [11, 11]  # window - 1: what the sliding layers keep


def test_every_width_and_block_is_timed(tmp_path: Path) -> None:
    target, head = tiny_head(tmp_path / "target")
    dflash = make_drafter(tmp_path / "drafter", ends=target)
    drafters: dict[str, tuple[Drafter, int]] = {"dflash2": (dflash, 4), "mtp": (head, 3)}
    costs = measure_costs(target, 9, drafters, CostOptions((1, 2, 8), repeats=1))
    assert costs.context == 9 and set(costs.pass_sec) == {1, 2, 8}
    assert {name: set(found) for name, found in costs.draft_sec.items()} == {
        "dflash2": {2, 3, 4},
        "mtp": {2, 3},
    }
    times = [costs.plain_sec, *costs.pass_sec.values(), *costs.draft_sec["mtp"].values()]
    assert all(sec > 0 for sec in times)
    assert costs.relative(8) == costs.pass_sec[8] / costs.pass_sec[1]


def test_a_padded_target_can_be_timed() -> None:
    exact = ExactTarget(make_target(), ExactPlan(4, pads=True))
    costs = measure_costs(exact, 9, None, CostOptions((1, 4), repeats=1))
    assert costs.pass_sec[1] > 0 and costs.pass_sec[4] > 0
    ratios = relative_costs(exact, make_target(), 9, (1, 4), 1)
    assert set(ratios) == {1, 4} and all(ratio > 0 for ratio in ratios.values())


def test_jobs_take_turns_there_and_back_and_the_first_turn_is_thrown_away() -> None:
    order: list[str] = []
    times = {"a": [900.0, 1.0, 50.0, 3.0], "b": [900.0, 7.0, 6.0, 8.0]}

    def job(name: str) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return times[name][order.count(name) - 1]

        return run

    found = interleave({("a", 1): job("a"), ("b", 1): job("b")}, repeats=3)
    assert "".join(order) == "abbaabba"
    assert found == {("a", 1): 3.0, ("b", 1): 7.0}


def profile(block: int, *survival: float) -> AcceptCurve:
    """A profile of 100 rounds."""
    accepts = tuple(round(100 * rate) for rate in survival)
    return AcceptCurve(block, 100, 100 + sum(accepts), accepts, (100,) * len(accepts), 4, 0)


def costs_of(context: int, plain: float, draft: float, row: float) -> ContextCosts:
    """Passes of 1 + row * (rows - 1), drafts of `draft`, blocks up to 4."""
    passes = {rows: 1 + row * (rows - 1) for rows in range(1, 5)}
    return ContextCosts(context, plain, passes, {"d": {block: draft for block in (2, 3, 4)}})


def test_the_forecast_by_hand() -> None:
    known = {4: profile(4, 0.8, 0.5, 0.1), 2: profile(2, 0.9)}
    two, three, four = forecast(costs_of(64, 0.5, 0.2, 0.1), "d", known)
    assert two.tokens_per_round == pytest.approx(1.9) and two.measured
    assert three.tokens_per_round == pytest.approx(2.3) and not three.measured
    assert four.tokens_per_round == pytest.approx(2.4) and four.measured
    assert three.round_sec == pytest.approx(0.2 + 1.2)
    assert three.tokens_per_second == pytest.approx(2.3 / 1.4)
    assert three.break_even == pytest.approx(1.4 / 0.5)
    assert three.speedup == pytest.approx(2.3 / 1.4 * 0.5)


def test_the_best_block_follows_the_costs() -> None:
    """Free rows: all of them; dear rows: two; and several contexts count together."""
    known = {4: profile(4, 0.8, 0.5, 0.1)}
    free, dear = costs_of(64, 1.0, 0.1, 0.0), costs_of(8000, 1.0, 0.1, 1.0)
    assert best_block(forecast(free, "d", known)) == 4
    assert best_block(forecast(dear, "d", known)) == 2
    both = [*forecast(free, "d", known), *forecast(dear, "d", known)]
    speedups = {block: 1.0 for block in (2, 3, 4)}
    for one in both:
        speedups[one.block] *= one.speedup
    assert best_block(both) == max(speedups, key=lambda block: speedups[block])


def test_what_looks_best_is_measured_before_it_is_believed() -> None:
    """Block 2 looks best from the answers at 4 and drafts badly when it is run: 3 is next."""
    measured: list[int] = []
    truth = {4: profile(4, 0.8, 0.6, 0.1), 2: profile(2, 0.1), 3: profile(3, 0.8, 0.6)}

    def measure(block: int) -> AcceptCurve:
        measured.append(block)
        return truth[block]

    profiles, forecasts, best = settle([costs_of(64, 1.0, 0.1, 0.6)], "d", 4, measure)
    assert measured == [4, 2, 3] and best == 3 and set(profiles) == {2, 3, 4}
    assert all(one.measured for one in forecasts)


@pytest.fixture(scope="module")
def target() -> Target:
    return make_target()


def scripted(target: Target, policy: Any, ids: list[int]) -> ScriptedDrafter:
    plain = stock_greedy(target.backbone.model, ids, 60)
    return ScriptedDrafter(policy, plain, start=len(ids))


@pytest.mark.parametrize(
    ("policy", "survival"),
    [
        (all_right(), (1.0, 1.0, 1.0)),
        (wrong_at(1, VOCAB), (1.0, 0.0, 0.0)),
        (all_wrong(VOCAB), (0.0, 0.0, 0.0)),
    ],
    ids=["right", "second wrong", "wrong"],
)
def test_acceptance_of_scripted_drafters(
    target: Target, policy: Any, survival: tuple[float, ...]
) -> None:
    ids = prompt(9)
    answers = plain_answers(target, [ids], PieceDetokenizer, 24)
    assert answers.plain == (tuple(stock_greedy(target.backbone.model, ids, 24)),)
    found = answers.profile(scripted(target, policy, ids), 4)
    assert found.survival == survival and found.rounds > 0
    assert found.expected_tokens(4) == 1 + sum(survival)
    assert found.expected_tokens(2) == 1 + survival[0]
    assert (found.answers, found.differing) == (1, 0)


def test_an_answer_with_other_ids_is_counted(target: Target) -> None:
    ids = prompt(9)
    answers = plain_answers(target, [ids, ids], PieceDetokenizer, 12)
    spoiled = type(answers)(
        answers.target,
        answers.prompts,
        answers.detokenizer,
        answers.max_tokens,
        (answers.plain[0], (*answers.plain[1][:-1], -1)),
    )
    found = spoiled.profile(scripted(target, all_right(), ids), 4)
    assert (found.answers, found.differing) == (2, 1)


def test_scratch_rows_are_no_trace() -> None:
    """The comparison above is not blind: another row in the cache is seen."""
    target = make_target("dense")
    cache = target.make_cache()
    target.forward_with_taps(mx.array([prompt(5)]), cache)
    other = fork_cache(cache)
    target.forward_with_taps(mx.array([[3]]), other)
    assert whole(cache) != whole(other)
