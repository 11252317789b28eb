"""Unused buffers are given back as mlx-lm gives them back, so that memory stays flat."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from dflash_suite.core.decode import loop
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions
from tests.kit.scripted import ScriptedDrafter, all_right
from tests.kit.tiny import PieceDetokenizer, make_target, prompt


class Counter:
    """Counts how often mlx is asked to give unused buffers back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        clear = mx.clear_cache

        def counted() -> None:
            self.count += 1
            clear()

        patch.setattr(mx, "clear_cache", counted)


@pytest.mark.quick
@pytest.mark.parametrize("drafts", [False, True])
def test_buffers_are_given_back_after_each_chunk_and_every_few_tokens(
    drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every chunk of the prompt, and whenever the answer passes a multiple of the interval,
    however many tokens a round adds."""
    target, ids, tokens = make_target("dense", num_hidden_layers=1), prompt(31), 40
    monkeypatch.setattr(loop, "CLEAR_CACHE_EVERY_TOKENS", 16)
    steps = generate_step(mx.array(ids), target.backbone.model, max_tokens=tokens)
    continuation = [int(token) for token, _ in steps]
    drafter = ScriptedDrafter(all_right(), continuation, len(ids), 5) if drafts else None
    options = GenerateOptions(max_tokens=tokens, prefill_step_size=10, gate=False)
    run = iter(Generation(target, ids, PieceDetokenizer(), drafter, options))
    counter, seen = Counter(monkeypatch), []
    for _ in run:
        seen.append(counter.count)
    assert seen[:4] == [0, 1, 2, 3], "one for each of the prompt's three chunks"
    last = len(ids) + tokens - 1
    assert counter.count - 3 == last // 16 - len(ids) // 16 == 3


def test_a_long_answer_gives_buffers_back_as_often_as_mlx_lm_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the interval as it stands, against mlx-lm's own loop over the same request."""
    target, ids = make_target("dense", num_hidden_layers=1), prompt(5)
    counter = Counter(monkeypatch)
    for _ in generate_step(mx.array(ids), target.backbone.model, max_tokens=520):
        pass
    stock, counter.count = counter.count, 0
    options = GenerateOptions(max_tokens=520, gate=False)
    assert sum(1 for _ in Generation(target, ids, PieceDetokenizer(), None, options)) > 500
    assert counter.count >= stock - 1 >= 2
