"""Which drafts are kept, and how rounds are counted."""

from __future__ import annotations

import pytest

from dflash_suite.core.decode.accept import accept_prefix, count_accepted
from dflash_suite.core.stats import GenerationStats

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("drafts", "choices", "tokens"),
    [
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [9, 5, 5, 5], [9]),
        ([1, 2, 3], [1, 2, 9, 0], [1, 2, 9]),
        ([], [42], [42]),
        ([7], [7, 8], [7, 8]),
        ([7], [6, 8], [6]),
        ([1, 2, 3], [1, 9, 3, 4], [1, 9]),
    ],
)
def test_longest_right_prefix_then_the_targets_choice(
    drafts: list[int], choices: list[int], tokens: list[int]
) -> None:
    assert accept_prefix(drafts, choices) == tokens
    assert count_accepted(drafts, choices) == len(tokens) - 1


@pytest.mark.parametrize(("drafts", "choices"), [([1, 2], [1, 2]), ([], []), ([1], [1, 2, 3])])
def test_wrong_number_of_choices_is_refused(drafts: list[int], choices: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{len(drafts) + 1} choices, got {len(choices)}"):
        accept_prefix(drafts, choices)


def test_drafts_are_not_changed() -> None:
    drafts = [1, 2, 3]
    accept_prefix(drafts, [1, 2, 3, 4]).append(5)
    assert drafts == [1, 2, 3]


PROFILES = [
    # (name, rounds, accepts by position, tokens of those rounds, tokens/round)
    ("chat 6", 36, [27, 19, 15, 12, 9, 9], 127, 3.528),
    ("chat 3", 56, [42, 19, 10], 127, 2.268),
    ("code 6", 23, [17, 15, 13, 10, 9, 8], 95, 4.130),
    ("code 3", 32, [27, 22, 14], 95, 2.969),
    ("prose 6", 30, [22, 17, 9, 7, 5, 5], 95, 3.167),
    ("prose 3", 37, [29, 22, 10], 98, 2.649),
]


@pytest.mark.parametrize(
    ("rounds", "accepts", "emitted", "tokens_per_round"),
    [profile[1:] for profile in PROFILES],
    ids=[str(profile[0]) for profile in PROFILES],
)
def test_accept_profile(
    rounds: int, accepts: list[int], emitted: int, tokens_per_round: float
) -> None:
    """Survival by draft position: position i is kept in accepts[i] of the rounds."""
    stats = GenerationStats()
    drafts = len(accepts)
    survivors = [rounds, *accepts, 0]
    for kept in range(drafts + 1):
        for _ in range(survivors[kept] - survivors[kept + 1]):
            stats.count_round(drafts, kept, kept + 1)
    assert stats.rounds == rounds
    assert stats.accepts == accepts
    assert stats.trials == [rounds] * drafts
    assert (stats.drafted, stats.accepted) == (rounds * drafts, sum(accepts))
    assert stats.emitted == sum(stats.accept_lengths) == emitted
    assert stats.tokens_per_round == pytest.approx(tokens_per_round, abs=5e-4)
    assert stats.accept_rate == pytest.approx(sum(accepts) / (rounds * drafts))
    assert stats.discarded == 0


@pytest.mark.parametrize(
    ("proposed", "accepted", "accept_length", "judged", "kept", "discarded"),
    [
        (6, 6, 7, 6, 6, 0),  # all kept, and the target's own token
        (6, 0, 1, 6, 0, 0),  # none kept: all six were judged
        (6, 2, 3, 6, 2, 0),
        (6, 4, 2, 2, 2, 4),  # cut inside the drafts: two were left to judge, both right
        (6, 4, 4, 4, 4, 2),  # cut right behind the last kept draft
        (6, 6, 6, 6, 6, 0),  # all six kept, only the target's own token was cut
        (1, 1, 1, 1, 1, 0),
    ],
)
def test_a_cut_leaves_only_judged_drafts(
    proposed: int, accepted: int, accept_length: int, judged: int, kept: int, discarded: int
) -> None:
    stats = GenerationStats()
    stats.count_round(proposed, accepted, accept_length)
    assert (stats.drafted, stats.accepted, stats.discarded) == (judged, kept, discarded)
    assert stats.trials == [1] * judged + [0] * (proposed - judged)
    assert stats.accepts == [1] * kept + [0] * (proposed - kept)
    assert stats.emitted == accept_length and stats.accept_lengths == [accept_length]
    assert stats.drafted + stats.discarded == proposed


def test_shorter_rounds_leave_fewer_trials_behind() -> None:
    stats = GenerationStats()
    stats.count_round(2, 2, 3)
    stats.count_round(4, 1, 2)
    stats.count_round(1, 1, 2)
    assert stats.trials == [3, 2, 1, 1]
    assert stats.accepts == [3, 1, 0, 0]
    assert stats.drafted == sum(stats.trials) and stats.accepted == sum(stats.accepts)


def test_no_round_has_no_rates() -> None:
    stats = GenerationStats()
    assert stats.tokens_per_round is None
    assert stats.accept_rate is None
    assert stats.tokens_per_second is None
    assert stats.to_dict()["tokens_per_round"] is None


def test_stats_document_has_the_agreed_keys() -> None:
    stats = GenerationStats()
    stats.count_round(2, 1, 2)
    document = stats.to_dict()
    agreed = {
        "rounds", "drafted", "accepted", "emitted", "plain_steps", "tokens_per_round", "accepts",
        "trials", "tokens_per_second", "ttft_sec", "peak_memory_bytes",
    }  # fmt: skip
    assert agreed <= set(document)
    assert "phase_sec" not in document
    assert document["accepts"] == [1, 0] and document["trials"] == [1, 1]
