"""Keeps a drafter's context at the target's position, whoever drafts at the moment.

While another route runs, committed rows wait here and are shown together, so that a plain step
pays nothing for a drafter that it does not use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import mlx.core as mx

from ..cache.resume import Mark
from ..device import start_eval
from ..target.target import TargetPass
from .drafter import Drafter, RewindableDrafter, TargetRows, session_of

BACKLOG_ROWS = 640
"""Rows that wait at most before they are shown: a bound on memory. Above the gate's longest run
of plain steps, none of which is then timed with a drafter's work in it."""


class ContextFeed:
    """One drafter and the rows that it has not seen yet."""

    def __init__(self, drafter: Drafter, tap_ids: Sequence[int]) -> None:
        """tap_ids: the layers that the loop taps, of which the drafter's are a part."""
        self.drafter = drafter
        self._columns = [tap_ids.index(tap) for tap in drafter.tap_ids]
        self._tapped = len(tap_ids)
        self.resets = 0
        self._ends: Sequence[int] = ()
        self._backlog: list[TargetRows] = []

    def start(self, ends: Sequence[int], mark: Mark | None = None) -> None:
        """Forget everything but what `mark` holds.

        ends: of the prompt and of the marks in it, in order: only the rows before these can matter
        to a drafter that looks back over a window.
        """
        position = mark.position if mark is not None else 0
        self._ends = ends
        self._backlog.clear()
        held = dict(mark.drafters).get(self.drafter.name) if mark is not None else None
        if (
            held is not None
            and position >= self.first_wanted(position)
            and isinstance(self.drafter, RewindableDrafter)
        ):
            self.drafter.return_to(held)
            return
        self.drafter.reset(max(self.first_wanted(position), position))

    def first_wanted(self, position: int) -> int:
        """The first row from `position` on that the drafter has to see; it may lie before."""
        rows = self.drafter.context_rows
        index = bisect_right(self._ends, position)
        if rows is None or index == len(self._ends):
            return 0
        return max(0, self._ends[index] - rows)

    def mark(self, position: int) -> object | None:
        """What the drafter needs to come back to `position`, the last row shown; None where it
        cannot, or does not stand there."""
        self.catch_up()
        drafter = self.drafter
        if not isinstance(drafter, RewindableDrafter) or drafter.position != position:
            return None
        return drafter.mark(lasting=True)

    def observe(self, position: int, ids: mx.array, result: TargetPass, *, wait: bool) -> None:
        """Take the first len(ids) rows of a pass, which begin at `position`; lazy.

        wait: keep them until the drafter is needed, or too many have gathered.
        """
        rows = TargetRows(position, ids, self._own_taps(result.taps), result.hidden)
        rows = rows.keep(len(ids))
        skip = self.first_wanted(position) - position
        if skip >= len(ids):
            return
        if skip > 0:
            rows = rows.from_row(skip)
            if self.drafter.position != rows.position:
                self.drafter.reset(rows.position)
        self._backlog.append(rows)
        if not wait:
            self.catch_up()
        elif sum(len(rows.token_ids) for rows in self._backlog) >= BACKLOG_ROWS:
            self.catch_up()
            start_eval(self.drafter.state())  # no draft is about to need it

    def catch_up(self) -> None:
        """Show the drafter what has gathered, in one piece."""
        if self._backlog:
            self._require_position(self._backlog[0].position)
            self.drafter.observe(join_rows(self._backlog))
            self._backlog.clear()

    def align(self, position: int) -> None:
        """Bring the drafter to `position`."""
        self.catch_up()
        self._require_position(position)

    def _require_position(self, position: int) -> None:
        """After a gap the drafter starts over: that costs acceptance, never bytes."""
        if self.drafter.position != position:
            self.drafter.reset(position)
            self.resets += 1

    def _own_taps(self, taps: mx.array | None) -> mx.array | None:
        """The drafter's columns of the tapped layer outputs, in its own order."""
        if taps is None or not self._columns:
            return None
        if self._columns == list(range(self._tapped)):
            return taps
        width = taps.shape[-1] // self._tapped
        parts = [taps[..., column * width : (column + 1) * width] for column in self._columns]
        return mx.concatenate(parts, axis=-1)


class Contexts:
    """The contexts of all drafters of a request, by name: each a session of its own.

    drafters: whose weights are used; sessions: those of an earlier request, to go on with.
    """

    def __init__(
        self, drafters: Sequence[Drafter], sessions: Mapping[str, Drafter] | None = None
    ) -> None:
        taken = sessions or {}
        taps = (tap for drafter in drafters for tap in drafter.tap_ids)
        self.tap_ids = tuple(dict.fromkeys(taps))
        self.sessions = {one.name: taken.get(one.name) or session_of(one) for one in drafters}
        self._feeds = {
            name: ContextFeed(session, self.tap_ids) for name, session in self.sessions.items()
        }

    def start(self, ends: Sequence[int], mark: Mark | None = None) -> None:
        """Contexts for a new prompt: empty, or those of `mark`; ends: as ContextFeed.start."""
        for feed in self._feeds.values():
            feed.start(ends, mark)

    def marks(self, position: int) -> list[tuple[str, object]]:
        """Each drafter that can come back to `position`, with what it needs for that."""
        held = ((name, feed.mark(position)) for name, feed in self._feeds.items())
        return [(name, mark) for name, mark in held if mark is not None]

    def taps_wanted(self, start: int, end: int) -> tuple[int, ...]:
        """What to tap in the prompt's rows from `start` to `end`: nothing where no drafter will
        see them."""
        seen = (feed for feed in self._feeds.values() if feed.first_wanted(start) < end)
        return self.tap_ids if any(feed.drafter.tap_ids for feed in seen) else ()

    def observe(
        self, position: int, ids: mx.array, result: TargetPass, *, active: str | None
    ) -> None:
        """Committed rows, for every drafter; those that are not `active` may see them later.

        active: the route of the round, None in the prefill, where all see them at once.
        """
        for name, feed in self._feeds.items():
            feed.observe(position, ids, result, wait=active not in (None, name))

    def align(self, name: str, position: int) -> Drafter:
        """The drafter, brought to `position`."""
        feed = self._feeds[name]
        feed.align(position)
        return feed.drafter

    @property
    def resets(self) -> int:
        """Times that a drafter had to start over after a gap."""
        return sum(feed.resets for feed in self._feeds.values())

    def state(self) -> list[mx.array]:
        """Arrays of all drafters, for one evaluation."""
        return [array for feed in self._feeds.values() for array in feed.drafter.state()]


def join_rows(pieces: Sequence[TargetRows]) -> TargetRows:
    """Consecutive pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    taps = [piece.taps for piece in pieces if piece.taps is not None]
    return TargetRows(
        pieces[0].position,
        mx.concatenate([piece.token_ids for piece in pieces]),
        mx.concatenate(taps, axis=1) if taps else None,
        mx.concatenate([piece.hidden for piece in pieces], axis=1),
    )
