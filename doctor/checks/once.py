"""A cached property whose error is raised to its first reader alone.

So each fault is reported by one check, the first that comes upon it, and every later check that
needs the same thing is not reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from ...core.errors import DflashError, resource_errors
from ..results import NotReached

S = TypeVar("S")
T = TypeVar("T")


def reach(*read: object) -> None:
    """Says that properties are read for the error that reading them raises, not for their value.

    A call, since an `assert` is left out under `python -O`, and the check with it.
    """


class once(Generic[S, T]):
    """As functools.cached_property, and errors are remembered too."""

    def __init__(self, function: Callable[[S], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> once[S, T]: ...
    @overload
    def __get__(self, instance: S, owner: type) -> T: ...
    def __get__(self, instance: S | None, owner: type) -> T | once[S, T]:
        if instance is None:
            return self
        known: dict[str, Any] = instance.__dict__
        if self._name in known:
            value: T = known[self._name]
            return value
        if f"{self._name} failed" in known:
            raise NotReached(self._name)
        try:
            with resource_errors():
                value = self._function(instance)
        except (DflashError, NotReached):
            known[f"{self._name} failed"] = True
            raise
        known[self._name] = value
        return value
