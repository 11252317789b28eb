"""The thread that owns the models: requests of many threads and coroutines, ends and errors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.errors import (
    ModelNotFound,
    OptionError,
    PromptError,
    PromptTooLong,
    QueueFull,
    WorkerStopped,
)
from dflash_suite.core.stats import Chunk, Finished
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.request import Request
from dflash_suite.drafters.worker.job import Job, Started
from dflash_suite.drafters.worker.worker import Worker, WorkerOptions
from tests.drafters.test_sessions import fresh, make_engine, modes_of, requests
from tests.kit.tiny import prompt

ENDLESS = 100_000
"""Tokens that nobody waits for."""
PATIENCE_SEC = 60


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with make_worker(tmp_path) as made:
        yield made


def make_worker(directory: Path, **options: int) -> Worker:
    return Worker(lambda: unbounded(make_engine(directory, "hybrid")), WorkerOptions(**options))


def unbounded(engine: Engine) -> Engine:
    """Its target states no positions, so that an answer can be endless."""
    raw = {**engine.target.config.raw, "max_position_embeddings": None, "text_config": None}
    engine.target.config = replace(engine.target.config, raw=raw)
    return engine


def endless(seed: int = 0) -> Request:
    return Request(prompt(6, seed=seed), max_tokens=ENDLESS, speculation="none")


def begun(job: Job) -> Iterator[Any]:
    """The job's events, of which the first Chunk was read."""
    events = iter(job)
    while not isinstance(next(events), Chunk):
        pass
    return events


def until(condition: Any) -> None:
    ends = time.monotonic() + PATIENCE_SEC
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_answers_to_many_threads_are_those_of_requests_alone(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "alone", "hybrid")
    asked = requests(1, modes_of("hybrid"), count=6)
    alone = [fresh(engine).complete(request).token_ids for request in asked]
    with make_worker(tmp_path, max_active=3) as worker, ThreadPoolExecutor(len(asked)) as threads:
        done = list(threads.map(lambda request: worker.submit(request).wait(), asked))
    assert [one.token_ids for one in done] == alone
    assert sum(one.stats.rounds for one in done) > 0


def test_events_come_in_order_and_once(worker: Worker) -> None:
    job = worker.submit(Request(prompt(9), max_tokens=12))
    first, *rest = job
    assert isinstance(first, Started) and list(first.prompt_ids) == prompt(9)
    assert isinstance(rest[-1], Finished) and first.route.route == "dflash2"
    ids = [token for one in rest if isinstance(one, Chunk) for token in one.token_ids]
    assert ids == job.completion().token_ids and len(ids) == 12
    assert list(job) == [], "each event is given once"


def test_coroutines_share_the_worker(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "alone", "hybrid")
    asked = requests(3, modes_of("hybrid"))

    async def answer(worker: Worker, request: Request) -> list[int]:
        events = [one async for one in worker.submit(request)]
        return [token for one in events if isinstance(one, Chunk) for token in one.token_ids]

    async def all_of(worker: Worker) -> list[list[int]]:
        return list(await asyncio.gather(*(answer(worker, request) for request in asked)))

    with make_worker(tmp_path) as worker:
        found = asyncio.run(all_of(worker))
    assert found == [fresh(engine).complete(request).token_ids for request in asked]


def test_a_coroutine_that_is_cancelled_ends_its_request(worker: Worker) -> None:
    job = worker.submit(endless())

    async def read() -> None:
        seen = asyncio.Event()

        async def consume() -> None:
            async for one in job:
                if isinstance(one, Chunk):
                    seen.set()

        task = asyncio.create_task(consume())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(read())
    until(lambda: job.over)
    done = job.completion()
    assert done.finish_reason == "cancelled" and 0 < len(done.token_ids) < ENDLESS
    assert worker.submit(Request(prompt(5), max_tokens=3)).wait().finish_reason == "length"


def test_leaving_the_events_early_ends_the_request(worker: Worker) -> None:
    job = worker.submit(endless())
    for one in job:
        if isinstance(one, Chunk):
            break
    until(lambda: job.over)
    assert 0 < len(job.completion().token_ids) < ENDLESS


def test_a_cancelled_prompt_is_left_between_two_passes(tmp_path: Path) -> None:
    def make() -> Engine:
        made = unbounded(make_engine(tmp_path, "hybrid"))
        made.prefill_step_size = 1
        return made

    with Worker(make) as worker:
        job = worker.submit(Request([3] * 4000, max_tokens=3, speculation="none"))
        events = iter(job)
        for _ in range(3):
            next(events)
        job.cancel()
        until(lambda: job.over)
        assert job.completion().token_ids == []


def test_turns_are_fair(tmp_path: Path) -> None:
    """A short request is not kept waiting by a long one, and none begins beyond max_active."""
    with make_worker(tmp_path, max_active=2) as worker:
        long = worker.submit(endless())
        held = [begun(long)]
        assert worker.submit(Request(prompt(5), max_tokens=4)).wait().finish_reason == "length"
        assert not long.over
        others = [worker.submit(endless(seed)) for seed in (1, 2)]
        held.append(begun(others[0]))
        until(lambda: worker.status.active == 2)
        assert worker.status.waiting == 1
        long.cancel()
        begun(others[1])


def test_a_full_queue_refuses_and_empties(tmp_path: Path) -> None:
    with make_worker(tmp_path, max_active=1, max_queue=1) as worker:
        first, second = worker.submit(endless()), worker.submit(endless())
        with pytest.raises(QueueFull, match="takes 2"):
            worker.submit("more")
        second.cancel()
        first.cancel()
        until(lambda: first.over and second.over)
        with pytest.raises(WorkerStopped, match="before it began|not over") as found:
            second.completion()
        assert "before it began" in str(found.value)
        assert worker.submit(Request(prompt(4), max_tokens=2)).wait().token_ids


def test_an_error_is_that_jobs_alone(worker: Worker) -> None:
    good = worker.submit(Request(prompt(9), max_tokens=8))
    bad = worker.submit(Request([10**6], max_tokens=8))
    with pytest.raises(PromptError, match="vocabulary"):
        list(bad)
    with pytest.raises(PromptError):
        bad.completion()
    assert len(good.wait().token_ids) == 8


def test_an_error_on_the_way_is_that_jobs_alone(worker: Worker) -> None:
    def spoil(engine: Engine) -> None:
        engine.target.block_ids = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]

    worker.call(spoil)
    bad = worker.submit(Request(prompt(9), max_tokens=8, speculation="dflash", gate=False))
    with pytest.raises(ZeroDivisionError):
        list(bad)
    plain = worker.submit(Request(prompt(9), max_tokens=8, speculation="none"))
    assert len(plain.wait().token_ids) == 8


def test_loading_fails_where_it_is_waited_for() -> None:
    worker = Worker.load("/nowhere/at/all")
    with pytest.raises(ModelNotFound):
        worker.start()
    with pytest.raises(WorkerStopped, match="nowhere"):
        worker.submit("text")


def test_closing_ends_all_and_refuses_more(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, max_active=1).start()
    running, waiting = worker.submit(endless()), worker.submit(endless())
    events = begun(running)
    worker.close()
    assert isinstance(next(events), Chunk), "what was decoded is still there to be read"
    assert running.completion().finish_reason == "cancelled"
    with pytest.raises(WorkerStopped, match="did not begin"):
        waiting.wait()
    with pytest.raises(WorkerStopped, match="closed"):
        worker.submit("text")
    with pytest.raises(WorkerStopped, match="closed"):
        worker.call(lambda engine: engine)
    worker.close()
    assert not worker.alive


def test_those_under_way_may_end_in_the_grace_time(tmp_path: Path) -> None:
    worker = make_worker(tmp_path).start()
    job = worker.submit(Request(prompt(9), max_tokens=60, speculation="none"))
    events = begun(job)
    worker.close(grace_sec=PATIENCE_SEC)
    assert job.completion().finish_reason == "length" and list(events)


def test_a_worker_that_was_not_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerStopped, match="not started"):
        make_worker(tmp_path).submit("text")


def test_questions_are_answered_in_the_owners_thread(worker: Worker) -> None:
    assert worker.call(lambda engine: threading.current_thread().name) == "dflash worker"
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda engine: 1 // 0)
    job = worker.submit(endless())
    events = begun(job)
    assert worker.call(lambda engine: engine.target.is_hybrid), "also between two turns"
    assert isinstance(next(events), Chunk)


def test_a_worker_that_dies_leaves_nobody_waiting(tmp_path: Path) -> None:
    """What ends the thread itself ends every job, with the reason, and later ones are refused."""
    with make_worker(tmp_path, max_active=1) as worker:
        running, waiting = worker.submit(endless()), worker.submit(endless())
        events = begun(running)

        def die(engine: Engine) -> None:
            def start(request: object, **how: bool) -> None:
                raise SystemExit("the end")

            engine.start = start  # type: ignore[method-assign,assignment]

        worker.call(die)
        running.cancel()
        with pytest.raises(SystemExit):
            waiting.wait()
        assert isinstance(next(events), Chunk)
        until(lambda: not worker.alive)
        with pytest.raises(WorkerStopped, match="the end"):
            worker.submit("text")


@pytest.mark.parametrize("options", [{"max_active": 0}, {"max_queue": -1}])
def test_bad_counts_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        WorkerOptions(**options)


def test_tokens_beyond_the_targets_positions_are_not_asked_for(tmp_path: Path) -> None:
    with Worker(lambda: make_engine(tmp_path, "dense")) as worker:
        job = worker.submit(Request(prompt(1000), max_tokens=500, speculation="none"))
        started, *rest = job
        assert isinstance(started, Started)
        (note,) = started.notes
        assert note.startswith("max_tokens is 24 in place of 500: the target has 1,024 positions")
        assert rest and len(job.completion().token_ids) == 24
        with pytest.raises(PromptTooLong, match="1024 tokens > 1024 maximum"):
            worker.submit(Request(prompt(1024), max_tokens=1)).wait()
