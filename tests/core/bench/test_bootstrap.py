"""The interval of a benchmark's ratios is a 99 % interval: held against the exact distribution."""

from __future__ import annotations

from math import comb

import pytest

from dflash_suite.core.bench import speed
from dflash_suite.core.bench.speed import compare_pairs


def exact_quantile(count: int, share: float) -> int:
    """Of `count` prompts with one distinct ratio each, the rank (from 0) of the smallest ratio that
    the median of a resample stays at or below with a probability of `share` at least.

    The median of a resample is at most the ratio of rank r if more than half of its members are,
    and each of them is with probability (r + 1) / count.
    """
    needed = count // 2 + 1
    for rank in range(count):
        p = (rank + 1) / count
        ways = range(needed, count + 1)
        if sum(comb(count, n) * p**n * (1 - p) ** (count - n) for n in ways) >= share:
            return rank
    raise AssertionError(share)


def separating_counts() -> list[int]:
    """Odd numbers of prompts where intervals at 98 % and at 99 % end at other ratios, with room on
    both sides: resampling is random and may not decide the outcome."""
    found = []
    for count in range(9, 200, 2):
        ranks = [exact_quantile(count, share) for share in (0.0035, 0.0065, 0.0085)]
        if ranks[0] == ranks[1] < ranks[2]:
            found.append(count)
    return found


@pytest.mark.quick
def test_the_interval_is_at_99_percent() -> None:
    counts = separating_counts()[:4]
    assert len(counts) >= 3, "hardly a number of prompts tells the two levels apart"
    for count in counts:
        ratios = [1 + index / 1000 for index in range(count)]
        compared = compare_pairs([[ratio] for ratio in ratios])
        assert compared is not None and compared.interval is not None
        low = exact_quantile(count, 0.005)
        assert compared.interval == (ratios[low], ratios[count - 1 - low])
        assert compared.to_dict()["interval99"] == list(compared.interval)


@pytest.mark.parametrize("confidence", [0.9, 0.98, 0.99])
def test_both_tails_share_what_is_left_out(confidence: float) -> None:
    """Many resamples come to the exact ranks within one, at every level."""
    count = 21
    groups = [[float(index)] for index in range(count)]
    low, high = speed.bootstrap_interval(groups, resamples=2000, confidence=confidence)
    assert abs(low - exact_quantile(count, (1 - confidence) / 2)) <= 1
    assert low + high == pytest.approx(count - 1, abs=1)
