"""Where a request outgrows its models, and where it just fits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dflash_suite.core.decode.positions import beyond, beyond_drafters
from tests.kit.tiny import target_config


@pytest.mark.parametrize(
    ("stated", "prompt", "tokens", "said"),
    [(100, 60, 40, False), (100, 60, 41, True), (None, 60, 400, False), ("100", 60, 400, False)],
)
def test_the_last_position_fits(stated: object, prompt: int, tokens: int, said: bool) -> None:
    target = SimpleNamespace(config=target_config("dense", max_position_embeddings=stated))
    assert (beyond(target, prompt, tokens) is not None) == said


def test_a_drafter_that_states_none_is_left_out() -> None:
    drafters = [SimpleNamespace(name="mtp"), SimpleNamespace(name="dflash", max_positions=50)]
    assert beyond_drafters(drafters, 25, 25) == []
    (note,) = beyond_drafters(drafters, 25, 26)
    assert "51 tokens" in note and "dflash" in note
