"""Requests one after another: none affects the next, and a conversation goes on from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dflash_suite.core.cache.resume import (
    Resume,
    Rows,
    best_mark,
    common_prefix,
    return_to,
    take_mark,
)
from dflash_suite.core.decode.gate import PLAIN, Gate
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.marks import MarkPlan
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.errors import PromptError, RollbackError, RouteUnavailable
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.stats import Chunk
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.pair import Pair
from dflash_suite.drafters.request import Request
from tests.kit.scripted import ScriptedDrafter, all_right
from tests.kit.snapshots import fed_alone, meaning
from tests.kit.tiny import Kind, PieceDetokenizer, make_target, prompt, stock_greedy

CODE = "def fibonacci(n):\n"


@pytest.fixture
def engine(bundled_pairs: dict[str, Pair], bundled_mtp: MtpDrafter) -> Engine:
    pair = bundled_pairs["dflash2"]
    assert pair.drafter is not None
    return Engine(pair.target, pair.tokenizer, [pair.drafter, bundled_mtp])


def fresh(engine: Engine) -> Engine:
    """An engine that has served nothing yet; drafters start over with each request anyway."""
    return Engine(engine.target, engine.tokenizer, engine.drafters)


def ask(prompt: str | Sequence[int], **changes: Any) -> Request:
    return Request(prompt, **{"max_tokens": 12, "block_size": 4, "gate": False, **changes})


def test_the_route_is_each_request_s_own(engine: Engine) -> None:
    plain = engine.complete(ask(CODE, speculation="none"))
    found = {
        value: engine.complete(ask(CODE, speculation=value))
        for value in ("auto", "dflash", "mtp", "none")
    }
    routes = {value: done.route.route for value, done in found.items()}
    assert routes == {"auto": "dflash2", "dflash": "dflash2", "mtp": "mtp", "none": "none"}
    assert found["auto"].route.reserve == "mtp"
    for value, done in found.items():
        assert done.token_ids == plain.token_ids and done.text == plain.text
        assert (done.stats.rounds > 0) == (value != "none")


def test_a_route_without_its_drafter_is_refused_with_the_reason(engine: Engine) -> None:
    bare = Engine(engine.target, engine.tokenizer, [], {"dflash": "the file is broken"})
    for value, reason in (("dflash", "the file is broken"), ("mtp", "no mtp drafter is loaded")):
        with pytest.raises(RouteUnavailable, match=reason):
            bare.complete(ask(CODE, speculation=value))
    done = bare.complete(ask(CODE))
    assert done.route.route == "none" and "the file is broken" in done.route.reason


def test_a_request_has_a_prompt_or_messages() -> None:
    with pytest.raises(PromptError, match="either a prompt or messages"):
        Request()
    with pytest.raises(PromptError, match="either a prompt or messages"):
        Request("x", messages=[{"role": "user", "content": "x"}])


MIXED = [
    ask(CODE),
    ask(CODE, speculation="mtp", draft_tokens=5),
    ask("class Stack:\n", block_size=6, stop=("self",)),
    ask(CODE, sampling=SamplingOptions(temperature=0.9, seed=7)),
    ask("import os\n", speculation="none"),
    ask(CODE, sampling=SamplingOptions(repetition_penalty=1.3)),
    Request(messages=[{"role": "user", "content": "a stack"}], max_tokens=12, gate=False),
    ask("class Stack:\n", sampling=SamplingOptions(temperature=0.9, seed=7), speculation="mtp"),
    ask([7, 8, 9, 10], speculation="dflash"),
    ask(CODE),
]


def test_mixed_requests_equal_fresh_engines(engine: Engine) -> None:
    """Backwards, then every third: whatever came before must not show."""
    alone = [fresh(engine).complete(request) for request in MIXED]
    assert len({tuple(done.token_ids) for done in alone}) > 6
    for order in (reversed(range(len(MIXED))), range(0, len(MIXED), 3)):
        serving = fresh(engine)
        for index in order:
            done = serving.complete(MIXED[index])
            assert done.token_ids == alone[index].token_ids, index
            assert done.text == alone[index].text and done.route == alone[index].route
            assert done.finish_reason == alone[index].finish_reason


@pytest.mark.parametrize("speculation", ["dflash", "mtp", "none"])
def test_a_conversation_goes_on_from_its_rows(engine: Engine, speculation: Any) -> None:
    """The second turn feeds only what is new, its ids and its acceptance are those of a cold
    start, and so are its caches."""
    first = engine.complete(ask(CODE, speculation=speculation, max_tokens=24))
    ids = [*engine.encode(ask(CODE)), *first.token_ids, *engine.tokenizer.encode("\n\ndef g(")]
    warm = engine.complete(ask(ids, speculation=speculation, max_tokens=24))
    cold = fresh(engine).complete(ask(ids, speculation=speculation, max_tokens=24, reuse=False))
    assert warm.stats.reused_tokens == len(engine.encode(ask(CODE))) + 23
    assert cold.stats.reused_tokens == 0
    assert warm.token_ids == cold.token_ids
    assert warm.stats.accept_lengths == cold.stats.accept_lengths
    assert warm.stats.drafter_resets == 0
    if speculation != "none":
        assert 0 < warm.stats.accepted < warm.stats.drafted


def test_an_edited_answer_goes_back_to_the_prompt_s_end(engine: Engine) -> None:
    start = engine.encode(ask(CODE))
    first = engine.complete(ask(start, max_tokens=30))
    ids = [*start, *first.token_ids[:5], *engine.tokenizer.encode("# another\n")]
    warm = engine.complete(ask(ids))
    cold = fresh(engine).complete(ask(ids, reuse=False))
    assert warm.stats.reused_tokens == len(start)
    assert warm.token_ids == cold.token_ids
    assert warm.stats.accept_lengths == cold.stats.accept_lengths


def test_rows_are_not_shared_with_a_drafter_that_did_not_see_them(engine: Engine) -> None:
    first = engine.complete(ask(CODE, speculation="none"))
    ids = [*engine.encode(ask(CODE)), *first.token_ids, 5]
    assert engine.complete(ask(ids, speculation="dflash")).stats.reused_tokens == 0
    again = engine.complete(ask([*ids, 6], speculation="none"))
    assert again.stats.reused_tokens > 0


def test_a_request_that_was_left_or_failed_does_no_harm(engine: Engine) -> None:
    """Left between two events its rows are shared; failed in a round they are not."""
    answer = engine.start(ask(CODE, max_tokens=40))
    generation, events = answer.generation, iter(answer)
    while not (isinstance(next(events), Chunk) and generation.stats.rounds > 2):
        pass
    emitted = list(generation.emitter.token_ids)
    events.close()
    ids = [*engine.encode(ask(CODE)), *emitted, 5]
    warm = engine.complete(ask(ids))
    assert warm.stats.reused_tokens == len(ids) - 2
    assert warm.token_ids == fresh(engine).complete(ask(ids, reuse=False)).token_ids

    generation = engine.start(ask(CODE)).generation
    generation.contexts.align = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        list(generation)
    after = engine.complete(ask(CODE))
    assert after.stats.reused_tokens == 0 and after.stats.rounds > 0
    assert after.token_ids == fresh(engine).complete(ask(CODE)).token_ids


def test_what_the_gate_learned_carries_over(engine: Engine) -> None:
    """The second request needs fewer plain steps to begin; one with another block begins anew."""
    serving = fresh(engine)
    request = replace(ask(CODE), gate=True, max_tokens=12)
    first = serving.complete(request)
    second = serving.complete(replace(request, reuse=False))
    assert first.token_ids == second.token_ids
    began = []
    for asked in (request, replace(request, block_size=3)):
        picker = serving.start(replace(asked, reuse=False)).generation.picker
        assert isinstance(picker, Gate)
        began.append((picker.route, picker.plain_sec is not None))
    assert first.stats.plain_steps >= 3 and began == [(PLAIN, True), (PLAIN, False)]


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_rewinding_leaves_the_caches_of_the_kept_rows(kind: Kind) -> None:
    """Bitwise, for the recurrent layers too, and through a run of mixed acceptance."""
    target, ids = make_target(kind), prompt(12)
    stock = stock_greedy(target.backbone.model, ids, 60)
    drafter = ScriptedDrafter(all_right(), stock, len(ids))
    run = Generation(
        target,
        ids,
        PieceDetokenizer(None),
        drafter=drafter,
        options=GenerateOptions(max_tokens=25, gate=False),
        setup=Setup(marks=MarkPlan()),
    )
    assert sum(1 for _ in run) > 0 and run.stats.accepted > 0
    rows = run.leave_rows()
    assert rows.token_ids == (*ids, *stock[:24])
    mark = best_mark(rows, [*ids, *stock[:3], 1, 2])
    assert mark is not None and mark.position == 12
    return_to(rows.cache, mark)
    assert meaning(rows.cache) == meaning(fed_alone(target.backbone.model, ids, len(ids)))
    following = Generation(
        target,
        [*ids, 9, 8],
        PieceDetokenizer(None),
        options=GenerateOptions(max_tokens=10),
        setup=Setup(resume=Resume(rows.cache, mark)),
    )
    assert sum(1 for _ in following) > 0
    assert following.emitter.token_ids == stock_greedy(target.backbone.model, [*ids, 9, 8], 10)


def test_marks_that_cannot_be_reached_are_refused_and_change_nothing() -> None:
    target, ids = make_target("hybrid"), prompt(8)
    run = Generation(target, ids, PieceDetokenizer(None), options=GenerateOptions(max_tokens=4))
    assert sum(1 for _ in run) > 0
    mark = take_mark(run.cache)
    assert mark is not None
    offsets = tuple((offset or 0) + 5 for offset in mark.place.offsets)
    ahead = replace(mark, place=replace(mark.place, offsets=offsets))
    assert best_mark(Rows((1, 2), run.cache, (ahead,)), [1, 2, 3]) is None
    with pytest.raises(RollbackError, match="start afresh"):
        return_to(run.cache, ahead)
    with pytest.raises(RollbackError):
        return_to(run.cache[:-1], mark)
    again = take_mark(run.cache)
    assert again is not None and again.place.offsets == mark.place.offsets


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2


def test_an_answer_is_iterated_and_a_text_is_a_request(engine: Engine) -> None:
    answer = engine.start(ask(CODE, max_tokens=12))
    text = "".join(event.text for event in answer if isinstance(event, Chunk))
    done = answer.completion()
    assert text == answer.text == done.text != ""
    assert len(done.token_ids) == 12 and done.route == answer.route
    whole = engine.start(CODE)
    again = engine.start(Request(CODE))
    for events in (iter(whole), iter(again)):
        while not isinstance(next(events), Chunk):
            pass
        events.close()
    assert whole.generation.options == again.generation.options
    assert whole.text == again.text != "" and text.startswith(whole.text)


def test_a_cut_answer_keeps_what_was_held_back(engine: Engine) -> None:
    """Ctrl-C: the text of all ids that were decoded, also what waited for a stop string."""
    answer = engine.start(ask(CODE, max_tokens=40, stop=("nowhere in it",)))
    events = iter(answer)
    while not (isinstance(next(events), Chunk) and answer.generation.stats.rounds > 2):
        pass
    events.close()
    answer.flush()
    done = answer.completion()
    assert done.finish_reason == "cancelled"
    assert done.text == engine.tokenizer.decode(done.token_ids)
