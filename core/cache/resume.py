"""Going on where an earlier request stopped: the longest prefix of its rows that can be used again.

A KV cache can be cut back to any row; a recurrent state only to a row where it was marked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx

from ..errors import UnsupportedCache
from .kinds import cache_arrays, compact_cache, fork_cache
from .place import Place, can_come_back, come_back, place_arrays, take_place


@runtime_checkable
class ForkingSession(Protocol):
    """A drafter's context that can be copied."""

    def fork(self, mark: object) -> Any:
        """The same drafter with a copy of its context at the mark."""

    def state(self) -> list[mx.array]:
        """Arrays of the context."""


@runtime_checkable
class HoldsArrays(Protocol):
    """A drafter's mark that keeps arrays alive."""

    def arrays(self) -> list[mx.array]:
        """These arrays."""


def arrays_of(held: object) -> list[mx.array]:
    """The arrays that a drafter's mark keeps alive."""
    return held.arrays() if isinstance(held, HoldsArrays) else []


@dataclass(frozen=True)
class Mark:
    """A place in the caches on a request's way, good whatever is fed after it.

    drafters: what each drafter, by name, needs to come back to it; stable: a later turn of the
    same chat will come back to it.
    """

    place: Place
    drafters: tuple[tuple[str, object], ...] = ()
    stable: bool = False

    @property
    def position(self) -> int:
        """Tokens that the caches had seen."""
        return self.place.position

    @property
    def drafter_names(self) -> frozenset[str]:
        """Drafters that can come back to it."""
        return frozenset(name for name, _ in self.drafters)


@dataclass(frozen=True)
class Rows:
    """The rows of a request: their tokens, its caches, and the marks on the way, in order.

    sessions: its drafters, by name, with the contexts of these rows.
    """

    token_ids: tuple[int, ...]
    cache: Sequence[Any]
    marks: tuple[Mark, ...]
    sessions: Mapping[str, Any] = field(default_factory=dict)

    def is_last_stable(self, mark: Mark) -> bool:
        """Whether no later mark is one that another turn will come back to."""
        return not any(one.stable and one.position > mark.position for one in self.marks)


@dataclass(frozen=True)
class Resume:
    """Caches to go on with, from `mark`, and the drafters whose contexts belong to them.

    Who takes them up owns them: the request that they come from is over, or they are copies.
    marks: those before it, and itself.
    """

    cache: Sequence[Any]
    mark: Mark
    sessions: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()


def take_mark(
    cache: Sequence[Any], drafters: Sequence[tuple[str, object]] = (), *, stable: bool = False
) -> Mark | None:
    """A mark at the caches' present position, its arrays computed and nobody else's; None where a
    layer has no lasting way back."""
    try:
        place = take_place(cache, lasting=True)
    except UnsupportedCache:
        return None
    mark = Mark(place, tuple(drafters), stable)
    mx.eval(mark_arrays(mark))
    return mark


def for_drafters(mark: Mark, names: Collection[str]) -> Mark:
    """The mark for a request that has these drafters alone."""
    return replace(mark, drafters=tuple(one for one in mark.drafters if one[0] in names))


def mark_arrays(mark: Mark) -> list[mx.array]:
    """Every array that a mark keeps alive."""
    held = [value for _, value in mark.drafters]
    return [*place_arrays(mark.place), *(one for value in held for one in arrays_of(value))]


def rows_bytes(rows: Rows) -> int:
    """Bytes of everything that rows keep alive; an array that several hold counts once."""
    found = {id(array): array for array in cache_arrays(rows.cache)}
    for session in rows.sessions.values():
        found |= {id(array): array for array in session.state()}
    for mark in rows.marks:
        found |= {id(array): array for array in mark_arrays(mark)}
    return sum(int(array.nbytes) for array in found.values())


COMPARED_AT_ONCE = 1024


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    most, start = min(len(left), len(right)), 0
    while start < most and tuple(left[start : start + COMPARED_AT_ONCE]) == tuple(
        right[start : start + COMPARED_AT_ONCE]
    ):
        start += COMPARED_AT_ONCE
    for index in range(start, most):
        if left[index] != right[index]:
            return index
    return most


def best_mark(rows: Rows, prompt_ids: Sequence[int], drafters: Collection[str] = ()) -> Mark | None:
    """The furthest mark whose rows all belong to `prompt_ids`, and to which the caches and these
    drafters can go.

    At least the prompt's last token is left to be fed.
    """
    shared = min(common_prefix(rows.token_ids, prompt_ids), len(prompt_ids) - 1)
    usable = [
        mark
        for mark in rows.marks
        if 0 < mark.position <= shared
        and mark.drafter_names >= set(drafters)
        and can_come_back(rows.cache, mark.place)
    ]
    return max(usable, key=lambda mark: mark.position, default=None)


def return_to(cache: Sequence[Any], mark: Mark) -> None:
    """Leave the caches as they were at the mark; RollbackError, with nothing changed, if not."""
    come_back(cache, mark.place)


def take_over(rows: Rows, mark: Mark) -> Resume:
    """Go on with the rows themselves, which belong to the new request from now on."""
    return Resume(rows.cache, mark, rows.sessions, marks_up_to(rows, mark))


def copy_rows(rows: Rows, mark: Mark) -> Resume | None:
    """Go on with a copy of the rows up to the mark; the rows stay as they are.

    None where one of the drafters cannot be copied.
    """
    named = {name: rows.sessions[name] for name in mark.drafter_names}
    if not all(isinstance(session, ForkingSession) for session in named.values()):
        return None
    cache = fork_cache(rows.cache)
    come_back(cache, mark.place)
    compact_cache(cache)
    held = dict(mark.drafters)
    sessions = {name: session.fork(held[name]) for name, session in named.items()}
    made = [array for session in sessions.values() for array in session.state()]
    mx.eval(cache_arrays(cache), made)
    return Resume(cache, mark, sessions, marks_up_to(rows, mark))


def marks_up_to(rows: Rows, mark: Mark) -> tuple[Mark, ...]:
    """The rows' marks that stay good where they are cut at `mark`."""
    return tuple(one for one in rows.marks if one.position <= mark.position)
