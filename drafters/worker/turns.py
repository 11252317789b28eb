"""The jobs of one worker: who waits, who is on the way, whose turn it is. One thread's alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from ...core.errors import DflashError, OutOfRoom, WorkerStopped
from ...core.stats import Event
from ..engine import Answer, Engine
from .job import Job, Started


@dataclass
class Running:
    """A job that has begun."""

    job: Job
    answer: Answer
    events: Generator[Event, None, None]


class Turns:
    """Advances at most `max_active` jobs, one round or one pass of a prompt each in turn."""

    def __init__(self, engine: Engine, max_active: int) -> None:
        self._engine = engine
        self._max_active = max_active
        self._waiting: deque[Job] = deque()
        self._running: deque[Running] = deque()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._running and not self._waiting

    @property
    def active(self) -> int:
        """Jobs that are on their way."""
        return len(self._running)

    def add(self, job: Job) -> None:
        """Behind those that wait."""
        self._waiting.append(job)

    def step(self) -> None:
        """Begin what can begin, and give the next job its turn."""
        self._begin()
        if self._running:
            running = self._running.popleft()
            if running.job.cancelled:
                self._leave(running)
            else:
                self._advance(running)

    def end(self, error: BaseException | None = None) -> None:
        """End all: those on the way with what they decoded until now, or with `error`."""
        while self._running:
            self._leave(self._running.popleft(), error)
        self.refuse_waiting(error)

    def refuse_waiting(self, error: BaseException | None = None) -> None:
        """End those that have not begun."""
        while self._waiting:
            stopped = WorkerStopped("the worker has stopped; this request did not begin")
            self._waiting.popleft().finish(error=error or stopped)

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._max_active:
            job = self._waiting[0]
            if job.cancelled:
                self._waiting.popleft().finish()
                continue
            try:
                answer = self._engine.start(job.request, bounded=True)
            except OutOfRoom as exc:
                if exc.can_wait and self._running:
                    return  # whoever is on the way will leave room
                self._waiting.popleft().finish(error=exc)
            except Exception as exc:  # a request that fails is that request's error alone
                self._waiting.popleft().finish(error=exc)
            else:
                self._waiting.popleft()
                generation = answer.generation
                ids, reused = tuple(generation.prompt_ids), generation.stats.reused_tokens
                job.put(Started(answer.route, ids, reused, answer.notes))
                # What it took from the bank is given back by an answer that has begun alone.
                self._advance(Running(job, answer, iter(answer)))

    def _advance(self, running: Running) -> None:
        """One event of a job, which is at rest again afterwards."""
        try:
            event = next(running.events, None)
        except Exception as exc:
            self._leave(running, exc)
            return
        if event is None:
            self._leave(running)
            return
        running.job.put(event)
        self._running.append(running)

    def _leave(self, running: Running, error: BaseException | None = None) -> None:
        """A job is over; its generation is closed between two events, so its rows are sound."""
        try:
            running.events.close()
            if error is None:
                running.answer.flush()
                running.job.finish(running.answer.completion())
        except DflashError as exc:
            error = error or exc
        if error is not None:
            running.job.finish(error=error)
