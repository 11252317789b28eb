"""A benchmark of a tiny target on a clock that tests move: order, verdicts, identity, Ctrl-C."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_suite.core.bench.environment import describe_device, describe_versions, hash_directory
from dflash_suite.core.bench.identity import top2_margin
from dflash_suite.core.bench.options import BenchOptions
from dflash_suite.core.bench.report import make_report
from dflash_suite.core.bench.runner import Bench
from dflash_suite.core.bench.speed import Spread
from dflash_suite.core.bench.sweep import find_best
from dflash_suite.core.bench.types import hash_ids
from dflash_suite.core.bench.widths import measure_widths
from dflash_suite.core.errors import OptionError
from tests.kit.bench_doubles import FakeClock, PricedDrafter, World, arm, finish, make_world
from tests.kit.tiny import PieceDetokenizer, make_target


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


@pytest.fixture(scope="module")
def equal_run(world: World) -> Bench:
    return finish(two_arms(world))


@pytest.fixture
def equal(equal_run: Bench) -> Bench:
    """A finished run of two equal arms, to spoil at will."""
    bench = copy.copy(equal_run)
    bench.samples, bench.references = list(bench.samples), dict(bench.references)
    return bench


def two_arms(world: World, slower: float = 1.0, clock: FakeClock | None = None) -> Bench:
    """The same drafter twice; the second one's time is `slower` times as long."""
    clock = clock or FakeClock()
    first = PricedDrafter(clock, world.answers, seed=1)
    second = PricedDrafter(
        clock, world.answers, 0.1 * slower, start_sec=0.05 * slower, seed=2, name="priced2"
    )
    return world.bench(arm(first, "one"), arm(second, "two"), clock=clock)


@pytest.mark.long
def test_a_planted_slowdown_is_found_and_equal_arms_are_not_told_apart(
    world: World, equal: Bench
) -> None:
    same = make_report(equal).comparisons[0]
    slow = make_report(finish(two_arms(world, 1.1))).comparisons[0]
    fast = make_report(finish(two_arms(world, 1 / 1.1))).comparisons[0]
    verdicts = [one.end_to_end.verdict for one in (same, slow, fast) if one.end_to_end]
    assert verdicts == ["no difference", "slower", "faster"]
    assert slow.end_to_end is not None
    assert slow.end_to_end.spread.median == pytest.approx(1 / 1.1, rel=0.03)
    assert all(row.loses for row in slow.rows) and not any(row.loses for row in fast.rows)
    assert slow.break_even is not None
    assert slow.break_even.time_ratio == pytest.approx(1.1, rel=0.03)
    assert slow.break_even.tokens_ratio == 1.0


def test_counts_order_and_identity(world: World, equal: Bench) -> None:
    bench = equal
    measured = [step for step in bench.plan if step.work == "measure"]
    assert [(one.arm, one.prompt, one.repeat) for one in bench.samples] == [
        (step.arm, step.prompt, step.repeat) for step in measured
    ]
    assert "".join(str(one.arm) for one in bench.samples)[:8] == "01100110"
    for sample in bench.samples:
        plain = bench.references[sample.prompt]
        assert sample.token_ids == plain and len(plain) == 16
        assert list(plain) == world.answers[world.prompts[sample.prompt].ids][:16]
        stats = sample.stats
        assert stats.rounds > 0 and 0 < stats.accepted < stats.drafted
        assert stats.target_passes == stats.rounds + stats.plain_steps  # one pass a round
    report = make_report(bench)
    for one in report.arms:
        assert one.identity.holds and one.identity.prompts == 8
        assert one.profile is not None
        assert one.profile.rounds == sum(
            sample.stats.rounds for sample in one.samples if sample.repeat == 0
        )
        assert one.finish_reasons == {"length": 8}
    assert not report.partial and report.degenerate == ()


def test_a_cold_first_call_changes_no_median(world: World) -> None:
    """Two seconds in the first draft of all, and two more within the first measured answer."""

    def decode(measured_delay_sec: float, first_delay_sec: float) -> Spread:
        clock = FakeClock()
        drafter = PricedDrafter(clock, world.answers, first_price_sec=first_delay_sec)
        bench = world.bench(arm(drafter), clock=clock, repeats=1)
        for state in bench.run():
            if state.step and state.step.work == "measure" and not bench.samples:
                drafter.first_price_sec = measured_delay_sec
        found = make_report(bench).arms[0].decode
        assert found is not None
        return found

    calm, cold, hit = decode(0.0, 0.0), decode(0.0, 2.0), decode(2.0, 0.0)
    assert cold.median == pytest.approx(calm.median) and cold.low == pytest.approx(calm.low)
    assert hit.median == pytest.approx(calm.median, rel=0.05)
    assert hit.low < 0.6 * calm.low  # shown, not trimmed


def test_a_plain_arm_is_its_own_reference(world: World) -> None:
    clock = FakeClock()
    drafter = PricedDrafter(clock, world.answers)
    bench = world.bench(arm(None, "none"), arm(drafter), clock=clock, repeats=1)
    assert not any(step.work == "reference" for step in bench.plan)
    report = make_report(finish(bench))
    plain = report.arms[0]
    assert plain.profile is None and plain.tokens_per_round == 1.0
    document = plain.to_dict()
    assert document["accept"] == {"accepts": None, "trials": None}
    assert report.arms[1].identity.holds
    assert sorted(bench.references) == list(range(8))


def test_other_ids_are_flagged_with_place_and_margin(world: World) -> None:
    bench = finish(two_arms(world, 1 / 1.3))
    for index, sample in enumerate(bench.samples):
        if sample.arm == 1 and sample.prompt == 3:
            ids = list(sample.token_ids)
            ids[5] = (ids[5] + 1) % 512
            bench.samples[index] = replace(sample, token_ids=tuple(ids))
    report = make_report(bench)
    difference = report.arms[1].identity.differences[0]
    assert (difference.prompt, difference.position) == (3, 5)
    assert difference.plain_token == bench.references[3][5]
    prompt = [*world.prompts[3].ids, *bench.references[3][:5]]
    assert difference.margin == pytest.approx(top2_margin(world.target, prompt, 4), abs=1e-4)
    assert (difference.margin or 0) > 0
    comparison = report.comparisons[0]
    assert comparison.ids_differ and comparison.flagged
    assert report.arms[0].identity.holds and not report.arms[1].identity.holds
    assert report.arms[1].to_dict()["identity"]["equal"] == 7


def test_answers_that_change_between_repeats_are_told(equal: Bench) -> None:
    bench = equal
    last = next(index for index, one in enumerate(bench.samples) if one.repeat == 1)
    sample = bench.samples[last]
    bench.samples[last] = replace(sample, token_ids=sample.token_ids[:-1])
    identity = make_report(bench).arms[sample.arm].identity
    assert identity.unsteady == (sample.prompt,) and not identity.holds
    assert identity.differences[0].position == 15


def test_loops_are_shown_and_left_out_of_the_headline(equal: Bench) -> None:
    bench = equal
    whole = make_report(bench).arms[0].profile
    bench.references[2] = (1, 2, 3, *[7] * 60)
    report = make_report(bench)
    assert report.degenerate == (2,) and report.headline == [0, 1, 3, 4, 5, 6, 7]
    comparison = report.comparisons[0]
    assert len(comparison.rows) == 8
    assert comparison.end_to_end is not None and comparison.end_to_end.spread.count == 14
    assert report.arms[0].profile is not None and whole is not None
    assert report.arms[0].profile.rounds < whole.rounds
    for prompt in range(8):
        bench.references[prompt] = (7,) * 60
    nothing = make_report(bench)
    assert nothing.headline == [] and nothing.comparisons[0].end_to_end is None
    assert nothing.arms[0].decode is None and nothing.to_dict()["arms"]


def test_an_interrupted_run_keeps_whole_groups(world: World) -> None:
    bench = two_arms(world)

    def interrupted() -> Iterator[None]:
        for state in bench.run():
            yield
            if state.step and (state.step.work, state.step.prompt) == ("measure", 3):
                if state.step.place == 1:
                    return  # its first neighbour is measured, this one never is

    list(interrupted())
    assert len(bench.samples) == 7
    report = make_report(bench)
    assert report.partial and report.measured == (0, 1, 2)
    assert report.comparisons[0].end_to_end is not None
    assert report.comparisons[0].end_to_end.spread.count == 3
    document = report.to_dict()
    assert sum(len(one["samples"]) for one in document["arms"]) == 7
    assert [one["measured"] for one in document["prompts"]] == [True] * 3 + [False] * 5


def test_nothing_measured_is_a_report_too(world: World) -> None:
    report = make_report(two_arms(world))
    assert report.partial and report.measured == () and report.arms[0].decode is None


def test_time_left_shrinks_to_nothing(world: World) -> None:
    clock = FakeClock()
    bench = world.bench(arm(PricedDrafter(clock, world.answers)), clock=clock, repeats=1)
    states = list(bench.run())
    assert states[0].left_sec is None and states[0].step is not None
    assert (states[-1].done, states[-1].left_sec) == (states[-1].total, 0.0)
    assert all((state.left_sec or 0) > 0 for state in states[1:-1])


def test_the_best_arm_of_a_sweep_and_its_equals(world: World) -> None:
    clock = FakeClock()
    prices = {"slow": 0.2, "best": 0.1, "twin": 0.1005}
    arms = [
        arm(PricedDrafter(clock, world.answers, price, seed=index, noise=0.1), name)
        for index, (name, price) in enumerate(prices.items())
    ]
    report = make_report(finish(world.bench(*arms, clock=clock)))
    best = find_best(report)
    assert best is not None and {best.arm, *best.as_good} == {1, 2}


def test_phases_add_up_to_the_wall_time(world: World) -> None:
    drafter = PricedDrafter(FakeClock(), world.answers)
    options = BenchOptions(max_tokens=16, repeats=1, profile_prompts=1, width_repeats=2)
    bench = Bench(world.target, PieceDetokenizer, [arm(drafter)], world.prompts[:1], options)
    report = make_report(finish(bench))
    phases = report.arms[0].phases
    assert phases is not None and set(phases) == {"draft", "verify", "accept", "rollback", "other"}
    passes = bench.phases[0][0].rounds + bench.phases[0][0].plain_steps
    assert sum(phases.values()) == pytest.approx(bench.phases[0][0].decode_sec / passes)
    assert all(seconds >= 0 for seconds in phases.values())
    assert list(report.widths) == [1, 2, 3, 4, 5] and all(report.widths.values())


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_widths_leave_one_row_a_pass(kind: str) -> None:
    target = make_target("hybrid" if kind == "hybrid" else "dense")
    caches = []
    make_cache = target.make_cache
    target.make_cache = lambda rows=None: caches.append(make_cache()) or caches[-1]  # type: ignore[method-assign, func-returns-value]
    found = measure_widths(target, [1, 2, 3], [1, 2, 4], 2, FakeClock())
    assert found == {1: 0.0, 2: 0.0, 4: 0.0}
    offsets = {layer.offset for layer in caches[0] if hasattr(layer, "offset")}
    assert offsets == {3 + 3 * 3}


def test_an_empty_benchmark_is_refused(world: World) -> None:
    with pytest.raises(OptionError, match="at least one"):
        Bench(world.target, PieceDetokenizer, [], world.prompts)
    with pytest.raises(OptionError, match="repeats"):
        BenchOptions(repeats=0)


def test_hashes_follow_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    (tmp_path / "notes.txt").write_text("not a part of the model")
    first = hash_directory(tmp_path)
    assert first == {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}
    file.write_bytes(b"weightz")
    assert hash_directory(tmp_path) != first
    assert hash_ids([1, 23]) == hashlib.sha256(b"1,23").hexdigest() != hash_ids([12, 3])


def test_device_and_versions_are_known() -> None:
    device, versions = describe_device(), describe_versions("9.9")
    assert device["kind"] in ("cpu", "gpu") and device["cores"] >= 1 and device["name"]
    assert versions["dflash-suite"] == "9.9" and versions["mlx"] and versions["mlx-lm"]
