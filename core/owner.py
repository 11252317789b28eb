"""The one thread that may use the models: MLX's streams belong to it, and do not survive a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from .errors import WrongThread

T = TypeVar("T")


@dataclass(frozen=True)
class Owner:
    """The thread and the process that it was made in."""

    thread_id: int = field(default_factory=threading.get_ident)
    thread_name: str = field(default_factory=lambda: threading.current_thread().name)
    process_id: int = field(default_factory=os.getpid)

    def require(self) -> None:
        """WrongThread for anyone else, before anything of MLX is touched."""
        if os.getpid() != self.process_id:
            raise WrongThread(
                f"these models were loaded in process {self.process_id}, and this is process "
                f"{os.getpid()}, forked from it: MLX does not survive a fork; load them here, or "
                "start the process by 'spawn'"
            )
        if threading.get_ident() != self.thread_id:
            raise WrongThread(
                f"these models belong to thread '{self.thread_name}', which loaded them, and this "
                f"is thread '{threading.current_thread().name}': use them there alone, or through "
                "dflash_suite.Worker, which takes requests from any thread"
            )


class Owned(Generator[T, None, None]):
    """A generator that only its owner can advance or close; anyone else's try changes nothing."""

    def __init__(self, owner: Owner, inner: Generator[T, None, None]) -> None:
        self._owner = owner
        self._inner = inner

    def send(self, value: None) -> T:
        """The next value."""
        self._owner.require()
        return self._inner.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: object = None,
        trace: TracebackType | None = None,
    ) -> T:
        """Raise within it, as closing does."""
        self._owner.require()
        error = kind if isinstance(kind, BaseException) else kind()
        return self._inner.throw(error)
