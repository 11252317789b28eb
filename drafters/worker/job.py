"""A request that another thread decodes: its events come in order, for a thread or a coroutine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass

from ...core.errors import WorkerStopped
from ...core.stats import Event
from ..request import Completion, Request
from ..routes import Route


@dataclass(frozen=True)
class Started:
    """A job's first event: its turn has come, and the prompt is about to be fed.

    prompt_ids: the prompt as it is fed; reused_tokens: how many of these were in a cache already.
    """

    route: Route
    prompt_ids: tuple[int, ...]
    reused_tokens: int
    notes: tuple[str, ...] = ()


JobEvent = Started | Event


@dataclass(frozen=True)
class _End:
    """Nothing more will come; error: what the iteration raises then."""

    error: BaseException | None = None


class Job:
    """One request, given to a Worker: iterate it, with `for` or `async for`, from any thread.

    The iteration raises what decoding raised. Leaving it early, or `cancel`, ends the request
    within one round; its prompt's rows stay for later ones. Each event is given once, so iterate
    in one place.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._items: deque[JobEvent | _End] = deque()
        self._changed = threading.Condition()
        self._wake: Callable[[], None] | None = None
        self._end: _End | None = None
        self._completion: Completion | None = None
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the rest."""
        return self._cancelled

    @property
    def over(self) -> bool:
        """Whether no further event can come."""
        return self._end is not None

    def cancel(self) -> None:
        """Ask for the end; returns at once, and does nothing to a request that is over."""
        self._cancelled = self._cancelled or not self.over

    def completion(self) -> Completion:
        """What came of a request that is over, also of one that was cancelled on its way.

        Raises what ended it, where that was an error; WorkerStopped where it is not over, or never
        began.
        """
        if self._end is not None and self._end.error is not None:
            raise self._end.error
        if self._completion is None:
            found = "was cancelled before it began" if self.over else "is not over"
            raise WorkerStopped(f"this request {found}; there is no completion of it")
        return self._completion

    def wait(self) -> Completion:
        """Every event passed over, the completion. Raises as `completion`."""
        for _ in self:
            pass
        return self.completion()

    def __iter__(self) -> Generator[JobEvent, None, None]:
        """Blocks this thread until the next event is there."""
        try:
            while True:
                with self._changed:
                    while not self._items:
                        self._changed.wait()
                    item = self._items.popleft()
                if isinstance(item, _End):
                    self._give_back(item)
                    return
                yield item
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncGenerator[JobEvent, None]:
        """As `for`, without blocking the event loop."""
        there, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(there.set)

        try:
            while True:
                with self._changed:
                    self._wake = wake
                    item = self._items.popleft() if self._items else None
                    if item is None:
                        there.clear()
                if item is None:
                    await there.wait()
                elif isinstance(item, _End):
                    self._give_back(item)
                    return
                else:
                    yield item
        finally:
            self._wake = None
            self.cancel()

    def put(self, event: JobEvent) -> None:
        """For the worker: the next event."""
        self._put(event)

    def finish(
        self, completion: Completion | None = None, error: BaseException | None = None
    ) -> None:
        """For the worker: the end, once."""
        if self._end is None:
            self._completion, self._end = completion, _End(error)
            self._put(self._end)

    def _put(self, item: JobEvent | _End) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            wake = self._wake
        if wake is not None:
            wake()

    def _give_back(self, end: _End) -> None:
        """Leave the end for whoever iterates again, and raise its error."""
        with self._changed:
            self._items.append(end)
        if end.error is not None:
            raise end.error
