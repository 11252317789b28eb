"""Rows of past requests, up to a number of bytes, for later ones that begin alike.

Every buffer has one owner. A request that goes on from the last mark of an entry takes it over, as
the next turn of that conversation; any other gets a copy up to its mark, as do those that begin
like a request that is still under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from .kinds import cache_arrays, compact_cache
from .resume import (
    ForkingSession,
    Mark,
    Resume,
    Rows,
    best_mark,
    copy_rows,
    marks_up_to,
    return_to,
    rows_bytes,
    take_over,
)


class RowSource(Protocol):
    """A request under way, whose rows may be copied while it is at rest."""

    @property
    def settled(self) -> bool:
        """Whether it is at rest, its caches whole."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""

    def rows(self) -> Rows:
        """Its rows as far as it came."""


@dataclass(eq=False)
class Entry:
    """Rows that nobody uses at the moment."""

    rows: Rows
    size_bytes: int


@dataclass(frozen=True)
class BankCounts:
    """What became of the requests that asked; a miss found no row that it could go on from."""

    taken_over: int = 0
    copied: int = 0
    missed: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class _Found:
    mark: Mark
    rows: Rows
    entry: Entry | None


class Bank:
    """limit_bytes: of all entries together, None: the last request's rows alone, of any size."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.counts = BankCounts()
        self._entries: list[Entry] = []  # the least recently used first
        self._sources: list[RowSource] = []

    @property
    def size_bytes(self) -> int:
        """Of all entries together."""
        return sum(entry.size_bytes for entry in self._entries)

    @property
    def entries(self) -> int:
        """How many requests' rows there are."""
        return len(self._entries)

    @property
    def marks(self) -> int:
        """Places in all of them from which a request could go on."""
        return sum(len(entry.rows.marks) for entry in self._entries)

    def watch(self, source: RowSource) -> None:
        """A request that has begun: its rows may be copied until it is over."""
        self._sources = [one for one in self._sources if not one.over]
        self._sources.append(source)

    def resume(self, prompt_ids: Sequence[int], drafters: Collection[str]) -> Resume | None:
        """What a request with this prompt and these drafters can go on from; None: nothing.

        What it returns belongs to that request.
        """
        found = self._find(prompt_ids, drafters)
        resume = None if found is None else self._hand_out(found)
        if resume is None:
            self.counts = replace(self.counts, missed=self.counts.missed + 1)
        return resume

    def put(self, rows: Rows) -> None:
        """Keep the rows of a request that is over, as far as they fit; the oldest give way."""
        if not rows.marks:
            return
        if self.limit_bytes is None:
            self._entries = [Entry(rows, rows_bytes(rows))]
            return
        fitted = _fit(rows, self.limit_bytes)
        if fitted is None:
            self._count_evicted()
            return
        self._entries = [one for one in self._entries if not _covers(fitted.rows, one.rows)]
        self._entries.append(fitted)
        self.shrink_to(self.limit_bytes)

    def shrink_to(self, limit_bytes: int) -> int:
        """Let go of the least recently used until the rest fits; returns the bytes let go.

        First all but the beginnings that other conversations may share, then these.
        """
        before = self.size_bytes
        for entry in list(self._entries[:-1]):
            if self.size_bytes > limit_bytes:
                self._cut_to_first(entry)
        while self._entries and self.size_bytes > limit_bytes:
            self._entries.pop(0)
            self._count_evicted()
        return before - self.size_bytes

    def clear(self) -> None:
        """Let go of everything."""
        self._entries.clear()

    def _find(self, prompt_ids: Sequence[int], drafters: Collection[str]) -> _Found | None:
        """The longest way that a prompt has in common with rows, ending in a mark."""
        best: _Found | None = None
        alive = [one.rows() for one in self._sources if one.settled and not one.over]
        pairs = [(entry.rows, entry) for entry in reversed(self._entries)]
        for rows, entry in [*pairs, *((rows, None) for rows in alive)]:
            mark = best_mark(rows, prompt_ids, drafters)
            if mark is not None and (best is None or mark.position > best.mark.position):
                best = _Found(mark, rows, entry)
        return best

    def _hand_out(self, found: _Found) -> Resume | None:
        entry, counts = found.entry, self.counts
        if entry is not None:
            self._entries.remove(entry)
            if self.limit_bytes is None or found.rows.is_last_stable(found.mark):
                self.counts = replace(counts, taken_over=counts.taken_over + 1)
                return take_over(found.rows, found.mark)
            self._entries.append(entry)  # used just now
        resume = copy_rows(found.rows, found.mark)
        if resume is not None:
            self.counts = replace(counts, copied=counts.copied + 1)
        return resume

    def _cut_to_first(self, entry: Entry) -> None:
        """Keep an entry's beginning alone; nothing of it where another entry has the same."""
        first = entry.rows.marks[0]
        if first.position == len(entry.rows.token_ids):
            return
        smaller = _cut(entry.rows, first)
        entry.rows, entry.size_bytes = smaller, rows_bytes(smaller)
        others = (one for one in self._entries if one is not entry)
        if any(_covers(one.rows, smaller) for one in others):
            self._entries.remove(entry)
        self._count_evicted()

    def _count_evicted(self) -> None:
        self.counts = replace(self.counts, evicted=self.counts.evicted + 1)


def _covers(rows: Rows, other: Rows) -> bool:
    """Whether `rows` begin with all of the other's tokens and have its marks."""
    count = len(other.token_ids)
    held = {mark.position: mark.drafter_names for mark in rows.marks}
    return rows.token_ids[:count] == other.token_ids and all(
        held.get(mark.position, frozenset()) >= mark.drafter_names for mark in other.marks
    )


def _fit(rows: Rows, limit_bytes: int) -> Entry | None:
    """The rows as far as they fit: up to the furthest mark, with its first and as many of the marks
    between. None where not even the first fits."""
    size_bytes = rows_bytes(rows)
    first = rows.marks[0]
    for mark in reversed(rows.marks):
        if size_bytes <= limit_bytes:
            break
        rows = _cut(rows, mark)
        inner = [one for one in rows.marks[1:-1] if one.stable]
        size_bytes = rows_bytes(rows := _with_marks(rows, [first, *inner, mark]))
        while size_bytes > limit_bytes and inner:
            size_bytes = rows_bytes(rows := _with_marks(rows, [first, *inner[1:], mark]))
            inner = inner[1:]
    return Entry(rows, size_bytes) if size_bytes <= limit_bytes else None


def _with_marks(rows: Rows, marks: Sequence[Mark]) -> Rows:
    """The rows with these of their marks, each once."""
    return replace(rows, marks=tuple({mark.position: mark for mark in marks}.values()))


def _cut(rows: Rows, mark: Mark) -> Rows:
    """The rows up to a mark, with no more memory than they need."""
    return_to(rows.cache, mark)
    compact_cache(rows.cache)
    sessions = {}
    for name, held in mark.drafters:
        session = rows.sessions[name]
        sessions[name] = session.fork(held) if isinstance(session, ForkingSession) else session
    arrays = [array for session in sessions.values() for array in session.state()]
    mx.eval(cache_arrays(rows.cache), arrays)
    return Rows(rows.token_ids[: mark.position], rows.cache, marks_up_to(rows, mark), sessions)
