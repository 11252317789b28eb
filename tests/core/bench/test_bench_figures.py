"""Figures of a benchmark from known counts and samples: profile, intervals, verdicts, loops."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dflash_suite.core.bench.accept_profile import AcceptProfile, pool_profile, wilson_interval
from dflash_suite.core.bench.compare import PromptRow, complete_groups
from dflash_suite.core.bench.context_lengths import split_by_context
from dflash_suite.core.bench.identity import first_difference, is_degenerate
from dflash_suite.core.bench.plan import arm_order, make_plan, plan_measures
from dflash_suite.core.bench.speed import BreakEven, Spread, compare_pairs, spread_of
from dflash_suite.core.stats import GenerationStats

SPECIFIED = {
    # (rounds, kept by position): what the specification quotes, reconstructed to whole rounds
    "chat dflash2": (36, [27, 19, 15, 12, 9, 9], 127, "75 53 42 33 25 25", 3.53),
    "chat mtp": (56, [42, 19, 10], 127, "75 34 18", 2.27),
    "code dflash2": (23, [17, 15, 13, 10, 9, 8], 95, "74 65 57 43 39 35", 4.13),
    "code mtp": (32, [27, 22, 14], 95, "84 69 44", 2.97),
    "prose dflash2": (30, [22, 17, 9, 7, 5, 5], 95, "73 57 30 23 17 17", 3.17),
    "prose mtp": (37, [29, 22, 10], 98, "78 59 27", 2.65),
}


def counted(rounds: int, kept: list[int], block: int | None = None) -> GenerationStats:
    """Statistics of rounds of which kept[i] accepted more than i drafts."""
    stats = GenerationStats()
    for index in range(rounds):
        accepted = sum(index < count for count in kept)
        stats.count_round(block or len(kept), accepted, accepted + 1)
    return stats


@pytest.mark.parametrize("case", SPECIFIED)
def test_the_specifications_profiles(case: str) -> None:
    rounds, kept, emitted, percents, tokens_per_round = SPECIFIED[case]
    profile = pool_profile([counted(rounds, kept)])
    assert profile.accepts == tuple(kept) and profile.trials == (rounds,) * len(kept)
    rates = [rate.value for rate in profile.survival if rate]
    assert " ".join(f"{100 * rate:.0f}" for rate in rates) == percents
    assert profile.emitted == emitted
    assert profile.tokens_per_round == pytest.approx(1 + sum(rates))
    assert round(profile.tokens_per_round or 0, 2) == tokens_per_round


def test_equal_accept_rates_hide_what_tokens_per_round_shows() -> None:
    deep, shallow = (pool_profile([counted(*SPECIFIED[case][:2])]) for case in list(SPECIFIED)[:2])
    assert deep.accept_rate == pytest.approx(0.42, abs=0.005)
    assert shallow.accept_rate == pytest.approx(0.42, abs=0.005)
    assert (deep.tokens_per_round or 0) > 1.5 * (shallow.tokens_per_round or 0)
    conditional = [f"{100 * rate.value:.0f}" for rate in deep.conditional if rate]
    assert conditional == ["75", "70", "79", "80", "75", "100"]
    assert [f"{100 * rate.value:.0f}" for rate in shallow.conditional if rate] == ["75", "45", "53"]


def test_conditional_rates_stay_rates_where_a_cut_shortens_rounds() -> None:
    """Two rounds of 4: one keeps a single draft, the other is cut after 3 right ones."""
    stats = GenerationStats()
    stats.count_round(4, 1, 2)
    stats.count_round(4, 4, 3)
    profile = pool_profile([stats])
    assert profile.trials == (2, 2, 2, 1) and profile.accepts == (2, 1, 1, 0)
    assert profile.reached == (2, 2, 1, 0)
    assert [rate.value if rate else None for rate in profile.conditional] == [1.0, 0.5, 1.0, None]
    assert profile.drafted == profile.accepted + 3  # accepted + rejected, per position judged
    assert profile.drafted + profile.discarded == 8


def test_pooling_adds_counts_of_different_depths() -> None:
    pooled = pool_profile([counted(10, [5, 2]), counted(4, [4, 1, 1])])
    assert pooled.accepts == (9, 3, 1) and pooled.trials == (14, 14, 4)
    assert pooled.rounds == 14 and pooled.tokens_per_round == pytest.approx(27 / 14)
    empty = pool_profile([])
    assert empty.tokens_per_round is None and empty.survival == []
    document = pooled.to_dict()
    assert document["accepts"] == [9, 3, 1] and document["interval95"][0][0] < 9 / 14


@pytest.mark.parametrize(
    ("kept", "tried", "low", "high"),
    [  # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_against_published_intervals(kept: int, tried: int, low: float, high: float) -> None:
    assert wilson_interval(kept, tried) == pytest.approx((low, high), abs=5e-5)


def test_wilson_refuses_what_is_no_share() -> None:
    for kept, tried in ((1, 0), (3, 2), (-1, 5)):
        with pytest.raises(ValueError, match="not a share"):
            wilson_interval(kept, tried)
    for tried in range(1, 60):  # no interval ends inside its own share, by rounding
        for kept in range(tried + 1):
            low, high = wilson_interval(kept, tried)
            assert 0 <= low <= kept / tried <= high <= 1


def noisy(seed: int, factor: float, prompts: int = 12, repeats: int = 3) -> list[list[float]]:
    """Paired ratios with 4 % noise on each side and now and then a burst from elsewhere."""
    draw = random.Random(seed)

    def seconds() -> float:
        return draw.gauss(1.0, 0.04) * (1.8 if draw.random() < 0.05 else 1.0)

    return [[seconds() / (seconds() * factor) for _ in range(repeats)] for _ in range(prompts)]


def verdicts(factor: float, count: int = 20, **sizes: int) -> list[str]:
    found = [compare_pairs(noisy(seed, factor, **sizes)) for seed in range(count)]
    return [ratio.verdict for ratio in found if ratio]


def test_a_against_a_is_no_difference() -> None:
    assert verdicts(1.0).count("no difference") >= 19
    assert verdicts(1.0, prompts=1, repeats=10).count("no difference") >= 19
    assert verdicts(1.0, prompts=8, repeats=1).count("no difference") >= 19


def test_a_slowdown_of_ten_percent_is_found_and_a_gain_too() -> None:
    assert verdicts(1.1, count=10) == ["slower"] * 10
    assert verdicts(1 / 1.1, count=10) == ["faster"] * 10


def test_the_interval_is_reproducible_and_holds_the_median() -> None:
    groups = noisy(3, 1.05)
    first, again = compare_pairs(groups), compare_pairs(groups)
    assert first == again and first is not None and first.interval is not None
    assert first.interval[0] <= first.spread.median <= first.interval[1]
    assert first.spread.count == 36
    assert first.to_dict()["verdict"] == first.verdict


def test_few_pairs_get_no_verdict() -> None:
    ratio = compare_pairs([[0.5] * 7])
    assert ratio is not None and ratio.verdict == "too few pairs" and ratio.interval is None
    ratio = compare_pairs([[0.5] * 8])
    assert ratio is not None and ratio.verdict == "slower"
    assert compare_pairs([[], []]) is None


def test_spread_keeps_every_value() -> None:
    assert spread_of([3.0, None, 1.0, 100.0]) == Spread(3.0, 1.0, 100.0, 3)
    assert spread_of([None]) is None


def test_break_even_predicts_the_specifications_outcomes() -> None:
    """Rounds 1.5 times as long: 1.555 times the tokens wins, 1.39 and 1.20 times loses."""
    for tokens, wins in ((1.555, True), (1.39, False), (1.20, False)):
        assert (BreakEven(1.5, tokens).speed_ratio > 1) is wins


def test_a_loser_is_slower_at_every_repeat() -> None:
    assert PromptRow(0, None, Spread(0.9, 0.8, 0.99, 3)).loses
    assert not PromptRow(0, None, Spread(0.9, 0.8, 1.01, 3)).loses
    assert not PromptRow(0, None, None).loses


@pytest.mark.parametrize(
    ("ids", "degenerate"),
    [
        ([1, 2] * 20, True),
        ([*range(40), *[1, 2] * 100, 0], True),  # whatever it ends in
        ([*range(64)] * 6, True),
        ([*range(64), 4, 4, 4], False),  # three equal tokens after sixty others
        ([*range(64)] * 2, False),
        ([4] * 18, False),  # too short to tell
        ([4] * 30, True),
        ([], False),
    ],
)
def test_degenerate_answers(ids: list[int], degenerate: bool) -> None:
    assert is_degenerate(ids) is degenerate


def test_a_prompt_that_repeats_itself_is_one_too() -> None:
    answer = [*range(500, 550)]
    assert is_degenerate(answer, [*range(12)] * 20)
    assert not is_degenerate(answer, [*range(240)])
    assert is_degenerate([*range(30)], [*range(30)]), "the answer is the prompt once more"


def test_one_of_the_bundled_answers_loops(bundled_prompts: list[dict[str, Any]]) -> None:
    loops = [one["kind"] for one in bundled_prompts if is_degenerate(one["plain_ids"])]
    assert loops == ["held-code"]


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_arms_alternate_over_prompts_and_over_repeats() -> None:
    steps = list(plan_measures(2, 3, 2))
    order = ["".join("AB"[step.arm or 0] for step in steps)]
    assert order == ["ABBAABBAABBA"]
    assert arm_order(3, 0, 0) == [0, 1, 2] and arm_order(3, 0, 1) == [2, 1, 0]
    for arm in (0, 1):  # each arm goes first as often as the other, on even numbers of groups
        assert sum(step.place == 0 and step.arm == arm for step in steps) == 3


def test_the_plan_warms_up_and_decodes_each_reference_once() -> None:
    plan = make_plan(arms=2, prompts=2, repeats=2, profile_prompts=1, reference=True, widths=True)
    works = [step.work for step in plan]
    assert works[:3] == ["warm-up", "warm-up", "reference"] and works[-1] == "widths"
    assert works.count("reference") == 2 and works.count("measure") == 8
    assert works.count("profile") == 2


def test_interrupted_groups_count_for_no_arm() -> None:
    class Fake:
        def __init__(self, arm: int, prompt: int) -> None:
            self.arm, self.prompt, self.repeat = arm, prompt, 0

    samples: Any = [Fake(0, 0), Fake(1, 0), Fake(1, 1)]
    assert [(one.arm, one.prompt) for one in complete_groups(samples, 2)] == [(0, 0), (1, 0)]


def test_tokens_per_round_by_context_length() -> None:
    """A prompt of 250: rounds begin at 251, 255 and 256, so the last one is in the next row."""
    stats = GenerationStats(prompt_tokens=250)
    for accept_length in (4, 1, 3):
        stats.count_round(4, accept_length - 1, accept_length)
    rows = split_by_context([stats])
    assert [(row.start, row.stop, row.rounds, row.emitted) for row in rows] == [
        (0, 256, 2, 5),
        (256, 1024, 1, 3),
    ]
    assert rows[0].to_dict()["tokens_per_round"] == 2.5
    far = GenerationStats(prompt_tokens=100_000)
    far.count_round(4, 0, 1)
    assert split_by_context([far])[0].stop is None
    stats.plain_steps = 2  # a gate was at work
    assert split_by_context([stats]) == []


def test_an_empty_profile_has_no_rates() -> None:
    profile = AcceptProfile(0, 0, 0, 0, 0, 5, 5, (), (), ())
    assert profile.accept_rate is None and profile.to_dict()["survival"] == []
