"""Defaults and the values that no run could use."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dflash_suite.core.block import NO_BLOCK, StoredBlock, resolve_block, resolve_chain
from dflash_suite.core.errors import OptionError
from dflash_suite.core.options import SPECULATION_VALUES, GenerateOptions, parse_speculation

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, "auto"), ("", "auto"), ("  ", "auto"), ("auto", "auto"), (" AUTO\n", "auto"),
        ("dflash", "dflash"), (" DFlash ", "dflash"), ("none", "none"), ("None", "none"),
        ("off", "none"), (" OFF", "none"), ("mtp", "mtp"), (" Mtp", "mtp"),
    ],
)  # fmt: skip
def test_speculation_values(text: str | None, value: str) -> None:
    """Trimmed and lower-cased; absent is auto, `off` is none."""
    assert parse_speculation(text) == value


@pytest.mark.parametrize("text", ["on", "d flash", "dflash2", "false", "0", "auto,none"])
def test_unknown_speculation_values(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_speculation(text)
    message = f"invalid 'speculation' value '{text}' (expected {'|'.join(SPECULATION_VALUES)})"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("trained", "requested", "effective"),
    [(8, None, 7), (16, None, 7), (7, None, 7), (5, None, 5), (2, None, 2), (8, 8, 8), (8, 2, 2)],
)
def test_block(trained: int, requested: int | None, effective: int) -> None:
    """The lesser of the trained block and 7, unless asked otherwise; drafts are one row less."""
    block = resolve_block(trained, requested)
    assert block.effective == effective and block.draft_tokens == effective - 1
    source = "as asked" if requested else "default min(trained, 7)"
    assert block.to_dict() == {
        "requested": requested, "trained": trained, "effective": effective, "source": source,
    }  # fmt: skip
    assert f"block {effective} of {trained} trained ({source})" in block.describe()


def test_a_stored_block_takes_the_place_of_the_default_alone() -> None:
    stored = StoredBlock(5, "2026-11-29")
    block = resolve_block(8, None, stored)
    assert block.effective == 5 and block.requested is None
    assert block.describe() == ", block 5 of 8 trained (stored probe of 2026-11-29)"
    asked = resolve_block(8, 6, stored)
    assert asked.effective == 6 and "as asked" in asked.describe()
    assert resolve_block(4, None, stored).effective == 4


def test_a_chain_takes_stored_drafts_in_place_of_the_default_alone() -> None:
    stored = StoredBlock(3, "2026-11-29")
    cases = ((None, None, 3), (None, stored, 2), (5, stored, 5), (None, StoredBlock(64, "x"), 6))
    for requested, known, drafts in cases:
        assert resolve_chain(requested, known).draft_tokens == drafts
    said = resolve_chain(None, stored).describe()
    assert said == ", up to 2 drafts a round (stored probe of 2026-11-29)"
    assert "(as asked)" in resolve_chain(5, stored).describe()
    assert "(default)" in resolve_chain(None).describe()


def test_block_without_a_drafter() -> None:
    block = NO_BLOCK
    assert (block.effective, block.draft_tokens, block.describe()) == (1, 0, "")


@pytest.mark.parametrize("requested", [9, 20])
def test_a_block_above_the_trained_one_is_no_silent_cut(requested: int) -> None:
    """20 on a drafter trained at 8 is an error, not 8."""
    with pytest.raises(OptionError, match=f"block_size {requested} is above the 8 .* give 2..8"):
        resolve_block(8, requested)


BAD: list[tuple[str, Any, str]] = [
    ("max_tokens", 0, "max_tokens must be at least 1, got 0"),
    ("max_tokens", -5, "max_tokens must be at least 1, got -5"),
    ("prefill_step_size", 0, "prefill_step_size must be at least 1, got 0"),
    ("block_size", 1, "block_size 1 leaves no room for a draft"),
    ("block_size", 0, "block_size 0 leaves no room for a draft"),
    ("block_size", -2, "block_size -2 leaves no room for a draft"),
    ("draft_tokens", 0, "draft_tokens is 0, expected 1..6"),
    ("draft_tokens", 7, "draft_tokens is 7, expected 1..6"),
    ("stop", ("ok", ""), "an empty stop string would end every answer at once"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_values_that_no_run_could_use(name: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        GenerateOptions(**{name: value})
    assert message in str(caught.value)


def test_options_are_frozen_and_have_defaults() -> None:
    options = GenerateOptions()
    assert options.max_tokens > 0 and options.block_size is None and options.stop == ()
    assert options.profile is False and options.gate is True and options.draft_tokens is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_tokens = 3  # type: ignore[misc]
