"""What passes and drafts cost on this device, by rows and by context: medians, interleaved.

A separate measurement over seeded ids: one cache a context is filled once, and put back after
every pass. What is made of the times stands in doctor/probe/forecast.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import mlx.core as mx

from ...core.cache.kinds import cache_arrays
from ...core.cache.place import come_back, take_place
from ...core.decode.choose import greedy
from ...core.decode.contexts import Contexts
from ...core.decode.drafter import Drafter, RewindableDrafter, TargetRows
from ...core.device import on_cpu
from ...core.target.target import Target

PREFILL_STEP = 2048
SEED = 3
ROOM = 64
"""Rows behind the context that a measurement feeds at most."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class CostOptions:
    """widths: rows of the passes; repeats: measurements a median is taken of, after one that is
    thrown away; plain_steps: steps of plain decoding a measurement."""

    widths: tuple[int, ...] = tuple(range(1, 17))
    repeats: int = 5
    plain_steps: int = 8


@dataclass(frozen=True)
class ContextCosts:
    """Median seconds with `context` tokens in the cache.

    plain_sec: a step of plain decoding, the next one queued ahead where there is a GPU; pass_sec:
    by rows, a verify pass with the choice after every row read and half of the rows rolled back;
    draft_sec: by drafter and block, the kept rows taken in and block - 1 drafts made.
    """

    context: int
    plain_sec: float
    pass_sec: Mapping[int, float]
    draft_sec: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def relative(self, width: int) -> float:
        """A pass of `width` rows over one of a single row."""
        return self.pass_sec[width] / self.pass_sec[1]

    def to_dict(self) -> dict[str, Any]:
        """An entry of `costs` in the doctor's JSON document."""
        return {
            "context": self.context,
            "plain_sec": self.plain_sec,
            "pass_sec": {str(width): sec for width, sec in self.pass_sec.items()},
            "draft_sec": {
                name: {str(block): sec for block, sec in found.items()}
                for name, found in self.draft_sec.items()
            },
        }


def measure_costs(
    target: Target,
    context: int,
    drafters: Mapping[str, tuple[Drafter, int]] | None = None,
    options: CostOptions | None = None,
    clock: Clock = time.perf_counter,
) -> ContextCosts:
    """Costs with `context` seeded tokens in the cache.

    drafters: by name, each with the largest of its blocks that is timed (2 up to it).
    """
    options = options or CostOptions()
    timed = Timed(target, context, drafters or {}, clock)
    jobs: dict[tuple[str, int], Callable[[], float]] = {
        ("", width): partial(timed.verify, width) for width in options.widths
    }
    for name, (_, most) in (drafters or {}).items():
        jobs |= {(name, block): partial(timed.draft, name, block) for block in range(2, most + 1)}
    jobs["plain", 0] = partial(timed.plain, options.plain_steps)
    found = interleave(jobs, options.repeats)
    return ContextCosts(
        context,
        found.pop(("plain", 0)),
        {width: sec for (name, width), sec in found.items() if not name},
        {
            name: {block: sec for (owner, block), sec in found.items() if owner == name}
            for name in drafters or {}
        },
    )


def relative_costs(
    target: Target, base: Target, context: int, widths: Sequence[int], repeats: int
) -> dict[int, float]:
    """By rows: a pass of `target` over the same of `base`, measured in turns."""
    timed = {
        name: Timed(one, context, {}, time.perf_counter)
        for name, one in (("target", target), ("base", base))
    }
    jobs: dict[tuple[str, int], Callable[[], float]] = {
        (name, width): partial(one.verify, width) for width in widths for name, one in timed.items()
    }
    found = interleave(jobs, repeats)
    return {width: found["target", width] / found["base", width] for width in widths}


def interleave(
    jobs: Mapping[tuple[str, int], Callable[[], float]], repeats: int
) -> dict[tuple[str, int], float]:
    """Median seconds of each job; all jobs in turn, there and back, the first turn thrown away."""
    times: dict[tuple[str, int], list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        order = list(jobs) if repeat % 2 == 0 else list(jobs)[::-1]
        for name in order:
            spent = jobs[name]()
            if repeat:
                times[name].append(spent)
    return {name: median(found) for name, found in times.items()}


class Timed:
    """One filled cache, with the drafters' contexts at its end; every call leaves both as it found
    them."""

    def __init__(
        self,
        target: Target,
        context: int,
        drafters: Mapping[str, tuple[Drafter, int]],
        clock: Clock,
    ) -> None:
        self._target = target
        self._clock = clock
        self._contexts = Contexts([drafter for drafter, _ in drafters.values()])
        self._drafters = self._contexts.sessions
        self._context = context
        self._vocab = target.config.vocab_size
        self._cache = self._filled()
        self._start = take_place(self._cache, lasting=True)
        self._rows: dict[str, TargetRows] = {}

    def verify(self, width: int) -> float:
        """Seconds of a pass over `width` rows, its choices read, half of it rolled back."""
        ids, keep = seeded_ids(width, self._vocab, SEED + 1), (width + 1) // 2
        mx.eval(ids)
        started = self._clock()
        result = self._target.verify_rows(ids[None], self._cache, self._contexts.tap_ids)
        choices = greedy(self._target.logits_from_hidden(result.hidden).squeeze(0))
        self._target.start_reading([choices])()
        self._target.rollback(self._cache, result.tape, keep, width - keep)
        mx.eval(cache_arrays(self._cache) if self._target.rollback_leaves_work else [])
        spent = self._clock() - started
        self._return()
        return spent

    def plain(self, steps: int) -> float:
        """Seconds a step of plain decoding, as the loop runs it: on a GPU one pass ahead."""
        choice = seeded_ids(1, self._vocab, SEED + 2)
        ahead = not on_cpu()
        mx.eval(choice)
        started = self._clock()
        following, following_read = self._step(choice)
        for _ in range(steps):
            choice, read = following, following_read
            if ahead:
                following, following_read = self._step(choice)
            read()
            if not ahead:
                following, following_read = self._step(choice)
        spent = self._clock() - started
        self._return()
        return spent / steps

    def draft(self, name: str, block: int) -> float:
        """Seconds of taking in half a block of rows and drafting block - 1 tokens."""
        drafter = self._drafters[name]
        rows = self._kept_rows(name, (block + 1) // 2)
        anchor = seeded_ids(1, self._vocab, SEED + 2)
        mark = drafter.mark() if isinstance(drafter, RewindableDrafter) else None
        mx.eval(anchor, drafter.state())
        started = self._clock()
        if mark is not None:
            drafter.observe(rows)
        mx.eval(drafter.draft(anchor, block - 1), drafter.state())
        spent = self._clock() - started
        if mark is not None and isinstance(drafter, RewindableDrafter):
            drafter.return_to(mark)
        return spent

    def _step(self, anchor: mx.array) -> tuple[mx.array, Callable[[], object]]:
        """(1,) id -> (1,) choice after it, and what waits for it."""
        result = self._target.forward_with_taps(anchor[None], self._cache)
        choice = greedy(self._target.logits_from_hidden(result.hidden).squeeze(0))
        return choice, self._target.start_reading([choice])

    def _kept_rows(self, name: str, count: int) -> TargetRows:
        """`count` committed rows behind the context, with the drafter's own taps."""
        if name not in self._rows:
            ids = seeded_ids(16, self._vocab, SEED + 3)
            taps = self._drafters[name].tap_ids
            result = self._target.forward_with_taps(ids[None], self._cache, taps)
            rows = TargetRows(self._context, ids, result.taps, result.hidden)
            mx.eval(rows.hidden, [] if rows.taps is None else rows.taps)
            self._return()
            self._rows[name] = rows
        return self._rows[name].keep(count)

    def _return(self) -> None:
        come_back(self._cache, self._start)
        mx.eval(cache_arrays(self._cache))

    def _filled(self) -> Sequence[Any]:
        cache = self._target.make_cache(self._context + ROOM)
        ids = seeded_ids(self._context, self._vocab, SEED)
        self._contexts.start([self._context])
        for start in range(0, self._context, PREFILL_STEP):
            piece = ids[start : start + PREFILL_STEP]
            taps = self._contexts.taps_wanted(start, start + len(piece))
            result = self._target.forward_with_taps(piece[None], cache, taps)
            self._contexts.observe(start, piece, result, active=None)
            mx.eval(cache_arrays(cache), self._contexts.state())
        return cache


def seeded_ids(count: int, vocab: int, seed: int) -> mx.array:
    """(count,) ids, the same for the same seed; MLX's global generator is left alone."""
    return mx.random.randint(0, vocab, (count,), key=mx.random.key(seed))
