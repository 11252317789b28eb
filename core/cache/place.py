"""A place in a request's caches, and the way back to it, whatever kinds of layers there are.

Nothing is touched before the way back is known to be there for every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..errors import RollbackError
from .classes import LayerHeld, held_arrays
from .layer_caches import class_of, offset_of


@dataclass(frozen=True)
class Place:
    """Where the caches stood: each layer's tokens, and what it held that is overwritten since.

    Good as long as the rows before it stay: going back further makes it another's.
    """

    offsets: tuple[int | None, ...]
    held: tuple[LayerHeld, ...]

    @property
    def position(self) -> int:
        """Tokens that the caches had seen."""
        return max((offset or 0 for offset in self.offsets), default=0)


def take_place(cache: Sequence[Any], *, lasting: bool = False) -> Place:
    """Where the caches stand now; arrays are held by reference.

    A ring is come back to only as long as nothing that it held has left its window, unless the
    place is lasting: its rows are copied then, and no array is a part of a larger one. Raises
    UnsupportedCache for a class that has no lasting way back.
    """
    held = tuple(class_of(layer).hold(layer, lasting) for layer in cache)
    return Place(tuple(map(offset_of, cache)), held)


def place_arrays(place: Place) -> list[mx.array]:
    """Every array that a place keeps alive."""
    return [array for held in place.held for array in held_arrays(held)]


def can_come_back(cache: Sequence[Any], place: Place) -> bool:
    """Whether every layer can go back to the place."""
    return len(cache) == len(place.held) and all(
        class_of(layer).can_go_back(layer, _beyond(layer, offset), held)
        for layer, offset, held in zip(cache, place.offsets, place.held, strict=True)
    )


def come_back(cache: Sequence[Any], place: Place) -> None:
    """Leave the caches as they were at the place; RollbackError, with nothing changed, if not."""
    if not can_come_back(cache, place):
        raise RollbackError(f"the cache cannot go back to {place.position} tokens; start afresh")
    for layer, offset, held in zip(cache, place.offsets, place.held, strict=True):
        class_of(layer).go_back(layer, _beyond(layer, offset), held)


def takes_back_any_row(cache: Sequence[Any]) -> bool:
    """Whether a row can be taken back wherever the caches stand: not from a ring that slides."""
    return all(class_of(layer).takes_back_any_row for layer in cache)


def _beyond(layer: Any, offset: int | None) -> int:
    """Rows fed since; 0 for a class that does not count them, and comes back all the same."""
    return 0 if offset is None else (offset_of(layer) or 0) - offset
