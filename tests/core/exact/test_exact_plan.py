"""A plan in words, in JSON and in a stored probe, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_suite.cli.text.bench import format_plan
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.probe_store import StoredProbe

DAY = "2026-11-20"
FREE = ExactPlan(16, pads=False, date=DAY)
FIXED = ExactPlan(8, pads=False, date=DAY, fixes_keys=True)
PADDED = ExactPlan(4, pads=True, date=DAY)
WORDS = {
    FREE: ("as they are", "blocks of up to 16 rows"),
    FIXED: ("fixed keys", "keys at a fixed number, blocks of up to 8 rows"),
    PADDED: ("padded", "every pass at 4 rows"),
}


@pytest.mark.parametrize("plan", WORDS, ids=lambda plan: plan.way)
def test_the_same_words_everywhere(plan: ExactPlan) -> None:
    way, words = WORDS[plan]
    assert (plan.way, plan.describe()) == (way, words)
    assert format_plan(plan.to_dict()) == [f"exact: {words}, measured now"]
    stored = replace(plan, checked="stored")
    assert format_plan(stored.to_dict()) == [f"exact: {words}, {DAY}"]


@pytest.mark.parametrize("plan", WORDS, ids=lambda plan: plan.way)
def test_there_and_back(plan: ExactPlan) -> None:
    again = ExactPlan.from_dict(plan.to_dict())
    assert again.to_dict() == plan.to_dict() and again.way == plan.way
    stored = plan.to_stored({"costs": []})
    assert stored.details == {"costs": []} and stored.block is None
    assert ExactPlan.from_stored(stored) == replace(plan, checked="stored")


def test_a_probe_without_a_plan_gives_none() -> None:
    assert ExactPlan.from_stored(StoredProbe(DAY, block=5)) is None
