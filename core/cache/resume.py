"""Going on where an earlier request stopped: the longest prefix of its rows that can be used again.

A KV cache can be cut back to any row; a recurrent state only to a row where it was marked. Nothing
is touched before a cut is known to be possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from ..errors import RollbackError
from .kinds import can_drop, offset_of


@dataclass(frozen=True)
class Mark:
    """Where the caches stood after `position` tokens.

    recurrent: (convolution window, state) of each recurrent layer, None for attention layers;
    drafters: what each drafter, by name, needs to come back to this position.
    """

    position: int
    recurrent: tuple[tuple[mx.array, mx.array] | None, ...]
    drafters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Rows:
    """The rows of a finished request: their tokens, its caches, and the marks on the way."""

    token_ids: tuple[int, ...]
    cache: Sequence[Any]
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Resume:
    """Caches to go on with, from `mark`."""

    cache: Sequence[Any]
    mark: Mark


def take_mark(
    cache: Sequence[Any], position: int, drafters: Sequence[tuple[str, object]] = ()
) -> Mark:
    """A mark at the caches' present position; holds arrays by reference, copies nothing."""
    recurrent = tuple(
        (layer[0], layer[1]) if isinstance(layer, ArraysCache) else None for layer in cache
    )
    return Mark(position, recurrent, tuple(drafters))


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
        mark for mark in rows.marks if 0 < mark.position <= shared and can_return(rows.cache, mark)
    ]
    return max(usable, key=lambda mark: mark.position, default=None)


def can_return(cache: Sequence[Any], mark: Mark) -> bool:
    """Whether every layer can go back to the mark."""
    if len(cache) != len(mark.recurrent):
        return False
    for layer, state in zip(cache, mark.recurrent, strict=True):
        beyond = (offset_of(layer) or 0) - mark.position
        if isinstance(layer, ArraysCache) != (state is not None) or beyond < 0:
            return False
        if state is None and not can_drop(layer, beyond):
            return False
    return True


def return_to(cache: Sequence[Any], mark: Mark) -> None:
    """Leave the caches as they were at the mark; RollbackError, with nothing changed, if not."""
    if not can_return(cache, mark):
        raise RollbackError(f"the cache cannot go back to {mark.position} tokens; start afresh")
    for layer, state in zip(cache, mark.recurrent, strict=True):
        beyond = (offset_of(layer) or 0) - mark.position
        if state is None:
            layer.trim(beyond)
        else:
            layer[0], layer[1] = state
            layer.advance(-beyond)
