"""Where a prompt is marked, so that a later request can go on from there.

A recurrent state can be taken up at a mark alone, so marks are set where later prompts will part
from this one. A mark ends a pass of the prompt; where a pass's width can change last bits, passes
end on a grid of absolute positions, which is the same in every request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..cache.resume import Mark, for_drafters, take_mark
from .contexts import Contexts

GRID_TOKENS = 512
"""Width of a pass on the grid."""
WIDE_TOKENS = 8192
"""Between two further marks of a long prompt, for histories that are edited or cut."""


@dataclass(frozen=True)
class MarkPlan:
    """Marks of one request.

    stable: positions that later turns of a chat come back to; grid_tokens: passes end at multiples
    of it, None where they may end anywhere; on_grid: marks that are not on the grid are left out,
    since only those on it leave every bit as it is; wide_tokens: between two further marks.
    """

    stable: tuple[int, ...] = ()
    grid_tokens: int | None = None
    on_grid: bool = False
    wide_tokens: int = WIDE_TOKENS

    @property
    def marks_ends(self) -> bool:
        """Whether the ends of prompt and answer are marked, rows of decoding among them."""
        return not self.on_grid

    def is_stable(self, position: int) -> bool:
        """Whether a later turn will come back to this mark."""
        return position in self.stable or (
            self.grid_tokens is not None
            and position in {self._below(one, self.grid_tokens) for one in self.stable}
        )

    def cuts(self, end: int) -> tuple[int, ...]:
        """Positions before and at `end` where a pass must end for a mark, in order."""
        found = set(range(self.wide_tokens, end + 1, self.wide_tokens))
        if not self.on_grid:
            found |= set(self.stable)
        if self.grid_tokens is not None:
            found |= {self._below(one, self.grid_tokens) for one in self.stable}
        return tuple(sorted(one for one in found if 0 < one <= end))

    @staticmethod
    def _below(position: int, grid_tokens: int) -> int:
        return position // grid_tokens * grid_tokens


NO_MARKS = MarkPlan(wide_tokens=1 << 62)


class Marks:
    """The marks of one request, and where the passes of its prompt must end for them.

    end: position before the prompt's last token.
    """

    def __init__(self, plan: MarkPlan | None, end: int) -> None:
        self._plan = plan or NO_MARKS
        self._keeps_ends = plan is not None and plan.marks_ends
        self._end = end
        self._cuts = self._plan.cuts(end)
        self.taken: list[Mark] = []

    def carry(self, marks: Sequence[Mark], contexts: Contexts) -> None:
        """Begin with the marks of an earlier request, whose rows this one goes on with."""
        self.taken = [for_drafters(mark, contexts.sessions) for mark in marks]

    @property
    def ends(self) -> tuple[int, ...]:
        """Positions in the prompt that something is to go on from, its end the last."""
        return (*(one for one in self._cuts if one <= self._end), self._end + 1)

    def next(self, position: int) -> int:
        """The furthest position that a pass from `position` may reach."""
        index = bisect_right(self._cuts, position)
        stop = self._cuts[index] if index < len(self._cuts) else self._end
        grid = self._plan.grid_tokens
        return stop if grid is None else min(stop, (position // grid + 1) * grid)

    def passed(self, position: int, cache: Sequence[Any], contexts: Contexts) -> None:
        """A pass of the prompt has ended at `position`: mark it where there is to be a mark."""
        index = bisect_right(self._cuts, position)
        if index > 0 and self._cuts[index - 1] == position:
            self._take(position, cache, contexts)

    def ended(self, position: int, cache: Sequence[Any], contexts: Contexts) -> None:
        """The prompt, or the answer, has ended at `position`."""
        if self._keeps_ends:
            self._take(position, cache, contexts)

    def _take(self, position: int, cache: Sequence[Any], contexts: Contexts) -> None:
        if position == 0 or any(one.position == position for one in self.taken):
            return
        mark = take_mark(cache, contexts.marks(position), stable=self._plan.is_stable(position))
        if mark is not None:
            self.taken.append(mark)
