"""The thread that owns MLX: it loads the models, decodes what others ask for, and frees them.

MLX's streams belong to a thread, so nothing else may touch the engine. Others call `submit` for a
Job, or `call` for a short function between two turns.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import mlx.core as mx

from ...core.errors import OptionError, QueueFull, WorkerStopped
from ...core.report import SILENT, Report
from ..engine import Engine, load
from ..load_keywords import LoadKeywords
from ..request import Request
from .job import Job
from .turns import Turns

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """A short function for the owner's thread, and where its answer goes."""

    function: Callable[[Engine], Any]
    answer: Future[Any]

    def run(self, engine: Engine) -> None:
        """Call it, unless nobody waits any more."""
        if self.answer.set_running_or_notify_cancel():
            try:
                self.answer.set_result(self.function(engine))
            except BaseException as exc:
                self.answer.set_exception(exc)


@dataclass(frozen=True)
class WorkerOptions:
    """How many requests one worker has at a time.

    max_active: requests that are decoded by turns; max_queue: further ones that may wait;
    prefix_bytes: of past requests' rows that are kept for later ones, None: a quarter of what is
    free after loading.
    """

    max_active: int = 4
    max_queue: int = 64
    prefix_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_active < 1:
            raise OptionError(f"max_active must be at least 1, got {self.max_active}")
        if self.max_queue < 0:
            raise OptionError(f"max_queue must be at least 0, got {self.max_queue}")


@dataclass(frozen=True)
class WorkerStatus:
    """How busy a worker is: jobs that are decoded by turns, and jobs that wait for a place."""

    active: int
    waiting: int


class Worker:
    """One engine in a thread of its own; a context manager that starts and closes it.

    make_engine: loads the engine, in that thread.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], options: WorkerOptions | None = None
    ) -> None:
        self.options = options or WorkerOptions()
        self._make_engine = make_engine
        self._tasks: queue.SimpleQueue[Job | Ask | None] = queue.SimpleQueue()
        self._ready: Future[None] = Future()
        self._lock = threading.Lock()
        self._jobs: list[Job] = []
        self._active = 0
        self._closing = False
        self._grace_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dflash worker", daemon=True)

    @classmethod
    def load(
        cls,
        model: str | None = None,
        drafter: str | None = None,
        *,
        options: WorkerOptions | None = None,
        report: Report = SILENT,
        **loading: Unpack[LoadKeywords],
    ) -> Self:
        """A worker that loads as `dflash_suite.load` does, once it is started."""
        return cls(lambda: load(model, drafter, report=report, **loading), options)

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive() and not self._closing

    @property
    def status(self) -> WorkerStatus:
        """How busy it is."""
        with self._lock:
            self._forget_finished()
            return WorkerStatus(self._active, max(0, len(self._jobs) - self._active))

    def start(self) -> Self:
        """Start the thread and wait until the models are loaded. Raises what loading raises."""
        self._thread.start()
        self._ready.result()
        return self

    def submit(self, request: Request | str) -> Job:
        """A request, or a text to answer, for the events that come of it; does not wait.

        Raises QueueFull where as many wait as may, WorkerStopped after `close` or a failure. What
        `Engine.start` raises, the job raises when it is iterated.
        """
        job = Job(Request(request) if isinstance(request, str) else request)
        with self._lock:
            self._require_alive()
            self._forget_finished()
            most = self.options.max_active + self.options.max_queue
            if len(self._jobs) >= most:
                raise QueueFull(
                    f"{len(self._jobs)} requests are under way or waiting, and this worker takes "
                    f"{most}; try again later"
                )
            self._jobs.append(job)
            self._tasks.put(job)
        return job

    def call(self, function: Callable[[Engine], T]) -> T:
        """What `function` returns or raises for the engine, in the owner's thread between two
        turns; waits for it. For short questions: everyone waits meanwhile."""
        return self.ask(function).result()

    def ask(self, function: Callable[[Engine], T]) -> Future[T]:
        """As `call`, without waiting."""
        answer: Future[T] = Future()
        with self._lock:
            self._require_alive()
            self._tasks.put(Ask(function, answer))
        return answer

    def close(self, grace_sec: float = 0.0) -> None:
        """Take no further request, give those under way `grace_sec` to end, and stop the thread.

        Requests that wait, or are under way after that, end as cancelled. Models are freed.
        """
        with self._lock:
            self._closing = True
        if not self._thread.is_alive():
            return
        self._tasks.put(None)  # wakes it up
        if grace_sec > 0:
            self._thread.join(grace_sec)
        self._grace_over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise WorkerStopped(f"the worker has stopped: {self._failure}") from self._failure
        if not self.alive:
            raise WorkerStopped("the worker is closed, or was not started; it takes no requests")

    def _forget_finished(self) -> None:
        self._jobs = [job for job in self._jobs if not job.over]

    def _run(self) -> None:
        """The thread, from its first breath to its last."""
        try:
            engine = self._make_engine()
            engine.keep_prefixes(self.options.prefix_bytes)
        except BaseException as exc:
            self._failure = exc
            self._ready.set_exception(exc)
            return
        turns = Turns(engine, self.options.max_active)
        self._ready.set_result(None)
        try:
            while not self._is_done(turns):
                self._take_tasks(engine, turns)
                if self._closing:
                    turns.refuse_waiting()
                turns.step()
                self._active = turns.active
            turns.end()
        except BaseException as exc:
            self._failure = exc
            turns.end(exc)
        finally:
            self._drop_tasks()
            del engine, turns
            gc.collect()  # generations and their caches, while their thread is still there
            mx.clear_cache()
            mx.clear_streams()

    def _is_done(self, turns: Turns) -> bool:
        return self._closing and (self._grace_over.is_set() or turns.idle)

    def _take_tasks(self, engine: Engine, turns: Turns) -> None:
        """What others asked for since the last turn; waits where there is nothing else to do."""
        while True:
            try:
                task = self._tasks.get(block=turns.idle and not self._closing)
            except queue.Empty:
                return
            if isinstance(task, Job):
                turns.add(task)
            elif task is not None:
                task.run(engine)

    def _drop_tasks(self) -> None:
        """Nothing that was asked for last is left without an answer."""
        stopped = self._failure or WorkerStopped("the worker has stopped")
        with self._lock:
            self._active, self._closing = 0, True
            jobs, self._jobs = self._jobs, []
            while not self._tasks.empty():
                task = self._tasks.get()
                if isinstance(task, Ask) and task.answer.set_running_or_notify_cancel():
                    task.answer.set_exception(stopped)
        for job in jobs:
            job.finish(error=stopped)
