"""A part of identity.py that fits a test run: short prompts of the bundled pair, float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.chat import encode_text
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.pair import Pair
from tests.kit.tiny_drafter import Recorder
from tests.long.identity import (
    DRAFTERS,
    MAX_TOKENS,
    Case,
    Tally,
    bundled_cases,
    decode,
    difference,
    drafter_arm,
    main,
    plain_arm,
    stdlib_cases,
)

NAMES = ("hand-4", "hand-chat-5", "held-chat-30", "held-chat-34")
"""Prompts with short answers, all of which end at an eos."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    found = bundled_cases(names=NAMES)
    assert [case.name for case in found] == list(NAMES)
    return found


@pytest.fixture(scope="module")
def plain(bundled_pair: Pair, cases: list[Case]) -> tuple[Tally, list[list[int]]]:
    model = bundled_pair.target.backbone.model
    return plain_arm(model, bundled_pair, cases, MAX_TOKENS)


def test_the_plain_loop_is_mlx_lms(plain: tuple[Tally, list[list[int]]]) -> None:
    tally, references = plain
    assert tally.problems == []
    assert tally.tokens == sum(len(ids) for ids in references) > 60


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("block", [3, 8])
def test_a_drafter_changes_no_token_and_accepts_what_the_reference_did(
    bundled_pairs: Mapping[str, Pair],
    cases: list[Case],
    plain: tuple[Tally, list[list[int]]],
    name: str,
    block: int,
) -> None:
    tally = drafter_arm(name, bundled_pairs[name], block, cases, plain[1], MAX_TOKENS)
    assert tally.problems == []
    assert tally.rounds < tally.tokens - tally.prompts  # it did save target passes
    recorded = [length for case in cases for length in case.accept_lengths[name]]
    if block == 8:
        assert (tally.rounds, tally.emitted) == (len(recorded), sum(recorded))


class BlindDrafter(Recorder):
    """Sees zeros where the target's features were."""

    def observe(self, rows: TargetRows) -> None:
        assert rows.taps is not None
        super().observe(replace(rows, taps=mx.zeros_like(rows.taps)))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_blind_drafter_accepts_less_and_changes_nothing(
    bundled_pairs: Mapping[str, Pair], name: str
) -> None:
    """That the target's features are really used shows in acceptance alone."""
    pair, case = bundled_pairs[name], bundled_cases(names=["hand-chat-5"])[0]
    assert isinstance(pair.drafter, DFlashDrafter)
    blind = replace(pair, drafter=BlindDrafter(pair.drafter))
    ids, stats = decode(blind, case, 8, MAX_TOKENS)
    assert ids == list(case.plain_ids)
    assert stats.rounds > 2 * len(case.accept_lengths[name])


def test_the_files_prompts_are_what_the_tokenizer_makes_of_their_text(
    bundled_pair: Pair, bundled_prompts: list[dict[str, Any]]
) -> None:
    tokenizer = bundled_pair.tokenizer
    for record in bundled_prompts:
        if "text" in record:
            ids = encode_text(tokenizer, record["text"])
        else:
            messages = [{"role": "user", "content": record["user"]}]
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        assert ids == record["prompt_ids"], record["name"]


def test_pieces_of_the_standard_library_follow_their_seed(bundled_pair: Pair) -> None:
    first, again, other = (stdlib_cases(bundled_pair.tokenizer, 3, seed) for seed in (11, 11, 12))
    assert first == again and first != other
    assert all(len(case.prompt_ids) >= 5 and not case.plain_ids for case in first)


def test_the_script_finds_what_is_wrong(bundled_pair: Pair, cases: list[Case]) -> None:
    """It must not be a check that cannot fail."""
    assert difference([1, 2], [1, 2], "ids") is None
    assert "differ at 1" in str(difference([1, 2], [1, 3], "ids"))
    assert "differ at 2" in str(difference([1, 2], [1, 2, 3], "ids"))
    case = cases[0]
    wrong = [list(case.plain_ids[:-1])]
    tally = drafter_arm("dflash2", bundled_pair, 8, [case], wrong, MAX_TOKENS)
    assert f"{case.name}: ids differ at {len(wrong[0])}" in tally.problems[0]
    assert "zero acceptance never occurred" in tally.problems[-1] or tally.zero
    empty = Tally("dflash2", 8)
    empty.check_not_vacuous()
    assert empty.problems == [
        "no speculative round",
        "full acceptance never occurred",
        "zero acceptance never occurred",
        "partial acceptance never occurred",
    ]


@pytest.mark.long
def test_the_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """One prompt and few tokens: too few rounds to show every kind of acceptance."""
    code = main("--prompts 1 --stdlib 0 --blocks 7 --seed 5 --max-tokens 12".split())
    out = capsys.readouterr().out
    assert "seed 5" in out and "dflash2      7       1     12" in out
    assert (code == 0) == out.rstrip().endswith("identical")
    assert "differ" not in out
