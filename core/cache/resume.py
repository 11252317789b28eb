"""Going on where an earlier request stopped: the longest prefix of its rows that can be used again.

A KV cache can be cut back to any row; a recurrent state only to a row where it was marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .place import Place, can_come_back, come_back, take_place


@dataclass(frozen=True)
class Mark:
    """A place in the caches on a request's way.

    drafters: what each drafter, by name, needs to come back to it.
    """

    place: Place
    drafters: tuple[tuple[str, object], ...] = ()

    @property
    def position(self) -> int:
        """Tokens that the caches had seen."""
        return self.place.position


@dataclass(frozen=True)
class Rows:
    """The rows of a finished request: their tokens, its caches, and the marks on the way.

    sessions: its drafters, by name, with the contexts of these rows.
    """

    token_ids: tuple[int, ...]
    cache: Sequence[Any]
    marks: tuple[Mark, ...]
    sessions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resume:
    """Caches to go on with, from `mark`, and the drafters whose contexts belong to them.

    Who takes them up owns them: the request that they come from must be over.
    """

    cache: Sequence[Any]
    mark: Mark
    sessions: Mapping[str, Any] = field(default_factory=dict)


def take_mark(cache: Sequence[Any], drafters: Sequence[tuple[str, object]] = ()) -> Mark:
    """A mark at the caches' present position; holds arrays by reference, copies nothing."""
    return Mark(take_place(cache), tuple(drafters))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def best_mark(rows: Rows, prompt_ids: Sequence[int]) -> Mark | None:
    """The furthest mark whose rows all belong to `prompt_ids`, and to which the caches can go.

    At least the prompt's last token is left to be fed.
    """
    shared = min(common_prefix(rows.token_ids, prompt_ids), len(prompt_ids) - 1)
    usable = [
        mark
        for mark in rows.marks
        if 0 < mark.position <= shared and can_come_back(rows.cache, mark.place)
    ]
    return max(usable, key=lambda mark: mark.position, default=None)


def return_to(cache: Sequence[Any], mark: Mark) -> None:
    """Leave the caches as they were at the mark; RollbackError, with nothing changed, if not."""
    come_back(cache, mark.place)
