"""How a hybrid decoder is cut into functions that are traced: at its attention layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Layers between two attention calls: the end of `before`, whole GDN layers, the beginning of
    `after`. Indices into the decoder's layers; None at the two ends."""

    before: int | None
    gdn: tuple[int, ...]
    after: int | None


def split_segments(linear: Sequence[bool]) -> list[Segment]:
    """Cut the decoder at its attention layers; linear[i] says that layer i is a GDN layer."""
    segments: list[Segment] = []
    before: int | None = None
    gdn: list[int] = []
    for index, is_linear in enumerate(linear):
        if is_linear:
            gdn.append(index)
            continue
        segments.append(Segment(before, tuple(gdn), index))
        before, gdn = index, []
    segments.append(Segment(before, tuple(gdn), None))
    return segments
