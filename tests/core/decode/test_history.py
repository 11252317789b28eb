"""What penalties look at: every row of a block is judged with exactly the tokens before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from dflash_suite.core.decode.choose import Chooser, Judged
from dflash_suite.core.decode.history import History
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.sampling_options import SamplingOptions
from tests.kit.scripted import Policy, ScriptedDrafter, all_right, all_wrong, mixed
from tests.kit.tiny import VOCAB, PieceDetokenizer, as_ids, make_target, prompt, stock_greedy

TOKENS, BLOCK = 14, 4
POLICIES: dict[str, Callable[[], Policy] | None] = {
    "plain": None,
    "all right": all_right,
    "all wrong": lambda: all_wrong(VOCAB),
    "mixed": lambda: mixed(VOCAB, BLOCK - 1),
}


@dataclass
class Watch:
    """A logits processor that changes nothing and keeps the tokens that it was shown."""

    records: list[list[int]] = field(default_factory=list)

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.records.append(as_ids(tokens))
        return logits


def histories(
    policy: Policy | None, sampling: SamplingOptions
) -> tuple[list[list[int]], list[list[int]]]:
    """(what a processor was shown, what it should have been shown), call by call."""
    target, ids, watch = make_target("hybrid"), prompt(9), Watch()
    drafted: list[list[int]] = []
    drafter = None
    if policy is not None:
        script = policy

        def kept(right: list[int], number: int) -> mx.array:
            drafts = script(right, number)
            drafted.append(as_ids(drafts))
            return drafts

        continuation = stock_greedy(target.backbone.model, ids, TOKENS)
        drafter = ScriptedDrafter(kept, continuation, len(ids), BLOCK)
    options = GenerateOptions(max_tokens=TOKENS, gate=False, sampling=sampling)
    setup = Setup(processors=[watch])
    run = Generation(target, ids, PieceDetokenizer(), drafter, options, setup)
    assert sum(1 for _ in run) > 0
    whole = [*ids, *run.emitter.token_ids]
    if drafter is None:
        return watch.records, [whole[:end] for end in range(len(ids), len(whole))]
    expected = [ids]
    for position, drafts in zip(drafter.draft_positions, drafted, strict=True):
        fed = [*whole[: position + 1], *drafts]
        expected += [fed[: position + 1 + row] for row in range(len(drafts) + 1)]
    return watch.records, expected


@pytest.mark.quick
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_row_is_judged_with_all_tokens_before_it(policy: str, temperature: float) -> None:
    make = POLICIES[policy]
    sampling = SamplingOptions(temperature=temperature, seed=5)
    found, expected = histories(None if make is None else make(), sampling)
    assert found == expected


def test_plain_decoding_shows_what_mlx_lm_shows() -> None:
    watch, target, ids = Watch(), make_target("hybrid"), prompt(9)
    steps = generate_step(
        mx.array(ids), target.backbone.model, max_tokens=TOKENS, logits_processors=[watch]
    )
    assert sum(1 for _ in steps) == TOKENS
    found, _ = histories(None, SamplingOptions())
    assert watch.records[:TOKENS] == found, "mlx-lm may look one token further than it yields"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("sampling", "most"),
    [
        (SamplingOptions(logit_bias=((3, 0.5),)), 0),
        (SamplingOptions(repetition_penalty=1.2, penalty_window=5), 5),
        (SamplingOptions(presence_penalty=0.2, penalty_window=7, logit_bias=((3, 0.5),)), 7),
        (SamplingOptions(frequency_penalty=0.2, penalty_window=10**6), 9 + TOKENS),
    ],
)
def test_no_more_is_sent_than_is_looked_at(
    sampling: SamplingOptions, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying the whole text each round took 11 ms at 131,072 tokens."""
    lengths: list[int] = []
    judge = Chooser.judge

    def watched(self: Chooser, *given: Any) -> Judged:
        lengths.append(given[2].shape[0])
        return judge(self, *given)

    monkeypatch.setattr(Chooser, "judge", watched)
    options = GenerateOptions(max_tokens=TOKENS, gate=False, sampling=sampling)
    run = Generation(make_target("hybrid"), prompt(9), PieceDetokenizer(), options=options)
    assert sum(1 for _ in run) > 0 and len(lengths) == TOKENS
    expected = [min(most, 8 + step) for step in range(TOKENS)]
    assert lengths == expected


def test_a_token_is_sent_once_where_all_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[int] = [7]
    history = History([1, 2, 3], emitted, None)
    sent: list[int] = []
    send = History._sent

    def counted(self: History, start: int, end: int) -> mx.array:
        sent.append(end - start)
        return send(self, start, end)

    monkeypatch.setattr(History, "_sent", counted)
    assert as_ids(history.before(2)) == [1, 2]
    assert as_ids(history.before(4)) == [1, 2, 3, 7]
    emitted += [8, 9]
    assert as_ids(history.before(4)) == [1, 2, 3, 7]
    assert as_ids(history.before(6)) == [1, 2, 3, 7, 8, 9] and sent == [2, 2, 2]
