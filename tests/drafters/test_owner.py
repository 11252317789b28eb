"""Models belong to the thread that loaded them, and a drafter keeps to the protocol."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.errors import DraftError, LogitsNotFinite, WrongThread
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.request import Request
from tests.drafters.test_sessions import Pieces, fresh, make_engine
from tests.kit.scripted import ScriptedDrafter, all_right
from tests.kit.tiny import make_target, prompt, stock_greedy


def elsewhere(function: Callable[[], object]) -> BaseException | None:
    """What the function raises in another thread."""
    found: list[BaseException | None] = [None]

    def run() -> None:
        try:
            function()
        except BaseException as exc:
            found[0] = exc

    thread = threading.Thread(target=run, name="another")
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("mode", ["dflash", "mtp", "none"])
def test_another_thread_is_told_so_and_changes_nothing(mode: Any, tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "hybrid")
    request = Request(prompt(9), max_tokens=20, speculation=mode, gate=False)
    alone = fresh(engine).complete(request).token_ids
    answer = engine.start(request)
    events = iter(answer)
    next(events)
    tries: list[Callable[[], object]] = [
        lambda: engine.start(request),
        lambda: engine.complete(request),
        lambda: engine.keep_prefixes(),
        lambda: next(events),
        lambda: events.close(),
        lambda: next(iter(answer)),
        lambda: next(iter(answer.generation)),
    ]
    for one in tries:
        error = elsewhere(one)
        assert isinstance(error, WrongThread)
        assert "'another'" in str(error) and "Worker" in str(error)
    assert list(events) and answer.completion().token_ids == alone


def in_a_child(engine: Engine, request: Request, results: Any) -> None:
    try:
        engine.complete(request)
        results.put("answered")
    except WrongThread as exc:
        results.put(str(exc))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_so(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    engine, results = make_engine(tmp_path, "dense"), forking.SimpleQueue()
    request = Request(prompt(5), max_tokens=2)
    engine.complete(request)
    child = forking.Process(target=in_a_child, args=(engine, request, results))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert "does not survive a fork" in results.get()


class Odd(ScriptedDrafter):
    """A drafter whose proposals are made by `change`."""

    name = "dflash"
    change: Callable[[mx.array], Any]

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        made: mx.array = self.change(super().draft(anchor, count))
        return made


BROKEN: dict[str, Callable[[mx.array], Any]] = {
    "floats": lambda ids: ids.astype(mx.float32),
    "NaN": lambda ids: ids * float("nan"),
    "two axes": lambda ids: ids[None],
    "too many": lambda ids: mx.concatenate([ids] * 9),
    "none": lambda ids: ids[:0],
    "a list": lambda ids: ids.tolist(),
    "truths": lambda ids: ids > 0,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_proposal_that_is_no_vector_of_ids_is_refused(name: str) -> None:
    target, ids = make_target("hybrid"), prompt(9)
    drafter = Odd(
        all_right(), stock_greedy(target.backbone.model, ids, 30), len(ids), name="dflash"
    )
    drafter.change = BROKEN[name]
    engine = Engine(target, Pieces(), [drafter])
    with pytest.raises(DraftError, match="expected a vector of 1 to"):
        engine.complete(Request(ids, max_tokens=20, speculation="dflash", gate=False))


@pytest.mark.parametrize("other", [-1, 512, 1 << 30])
def test_ids_outside_the_vocabulary_are_fed_as_legal_ones(other: int) -> None:
    """They can never be accepted, so the text is the target's own."""
    target, ids = make_target("hybrid"), prompt(9)
    plain = stock_greedy(target.backbone.model, ids, 20)
    drafter = Odd(all_right(), [*plain, *plain], len(ids), name="dflash")
    drafter.change = lambda drafts: mx.full(drafts.shape, other, mx.int32)
    engine = Engine(target, Pieces(), [drafter])
    done = engine.complete(Request(ids, max_tokens=20, speculation="dflash", gate=False))
    assert done.token_ids == plain and done.stats.rounds > 5 and done.stats.accepted == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", [0, 2, 3, None])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_end_the_request(
    value: float, layer: int | None, temperature: float
) -> None:
    """It was token 0 for ever, with exit code 0."""
    target = make_target("hybrid")
    body: Any = target.backbone.body
    if layer is None:
        body.norm.weight = body.norm.weight * value
    else:
        norm = body.layers[layer].input_layernorm
        norm.weight = norm.weight * float("nan")
    engine = Engine(target, Pieces())
    sampling = SamplingOptions(temperature=temperature, seed=1)
    with pytest.raises(LogitsNotFinite) as found:
        engine.complete(Request(prompt(5), max_tokens=6, sampling=sampling))
    expected = "caches hold" if layer is None else f"layer {layer} of 4"
    assert "not finite" in str(found.value) and expected in str(found.value)


def test_a_first_or_last_id_that_is_meant_is_no_fault() -> None:
    target = make_target("dense")
    engine = Engine(target, Pieces())
    for token in (0, target.config.vocab_size - 1):
        sampling = SamplingOptions(logit_bias=((token, 100.0),))
        done = engine.complete(Request(prompt(5), max_tokens=4, sampling=sampling))
        assert done.token_ids[0] == token
