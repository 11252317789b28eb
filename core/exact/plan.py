"""Passes whose rows depend on their own past alone, so that every mode gives the same ids.

Where MLX's kernels do not give that as they are, attention gets a fixed number of keys, and
where that is not enough every pass of the loop runs at one width. What is enough is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import mlx.core as mx

from ..cache.layer_caches import window_of
from ..cache.make import fixed_caches
from ..cache.tape import Tape
from ..device import on_cpu
from ..errors import CacheError, ExactUnavailable, RollbackError
from ..target.target import Target, TargetPass
from .agreement import Agreement, agree_in_every_way, agree_up_to
from .exact_plan import ExactPlan

DEFAULT_WIDTH = 8
MAX_WIDTH = 16
PADDED_WIDTHS = (DEFAULT_WIDTH, MAX_WIDTH, 4)
"""Tried in this order, after the width asked for."""
CHECK_TOKENS = 16
GPU_CHECK_TOKENS = 48
"""More where they cost little: a product in another order of addition rounds alike most times."""
CPU_CONTEXTS = (16, 250)
GPU_CONTEXTS = (56, 1016, 2040, 8184)
"""Tokens before the checked ones, so that these cross the numbers of keys at which kernels and
their splits change."""


class ExactTarget(Target):
    """A target that runs by a plan; callers see the rows that they fed, never the padding."""

    def __init__(self, inner: Target, plan: ExactPlan) -> None:
        super().__init__(inner.backbone, inner.config)
        self.plan = plan

    @property
    def widest(self) -> int:
        """Most rows of a verify pass."""
        return self.plan.width

    @property
    def can_queue(self) -> bool:
        """Whether plain steps may be built ahead: where their arithmetic is the suite's own, which
        knows of nothing but its rows. Others run as they were measured, one after another."""
        return not self.plan.pads and (on_cpu() or self.independent_rows is not None)

    @property
    def can_share_rows(self) -> bool:
        """A cache of a fixed size is one request's; and a prompt that is cut into other passes
        gives the same bits on the CPU alone."""
        return on_cpu() and not self.plan.has_fixed_keys

    def make_cache(self, rows: int | None = None) -> list[Any]:
        """A fresh cache; rows: most tokens that it will have to hold, the last block included."""
        if not self.plan.has_fixed_keys:
            return super().make_cache(rows)
        if rows is None:
            raise CacheError("a cache of a fixed size needs the number of rows: make_cache(rows)")
        room = rows + self.plan.width  # for the padding of the last pass
        return fixed_caches(super().make_cache(room), room)

    def verify_rows(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int]
    ) -> TargetPass:
        """As a Target's. Where the plan pads, the tape and the caches hold the padding until
        `rollback`, which must follow, whatever is kept."""
        rows, width = token_ids.shape[1], self.plan.width
        if not self.plan.pads:
            return super().verify_rows(token_ids, cache, tap_ids)
        if rows > width:
            raise CacheError(f"{rows} rows in one pass, where every pass has {width}")
        padded = super().verify_rows(_pad(token_ids, width), cache, tap_ids)
        return TargetPass(
            padded.hidden[:, :rows],
            None if padded.taps is None else padded.taps[:, :rows],
            None if padded.tape is None else replace(padded.tape, padding=width - rows),
        )

    def rollback(self, cache: Sequence[Any], tape: Tape | None, keep: int, drop: int) -> None:
        """As a Target's, of the padding too."""
        if not self.plan.pads:
            super().rollback(cache, tape, keep, drop)
            return
        padding = self.plan.width - keep - drop if tape is None else tape.padding
        if padding < 0:
            raise RollbackError(
                f"{keep} rows kept and {drop} dropped, where every pass has {self.plan.width}"
            )
        super().rollback(cache, tape, keep, drop + padding)

    def logits_from_hidden(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) -> (1, T, vocab); where the plan pads, the head too runs at its width."""
        if not self.plan.pads:
            return super().logits_from_hidden(hidden)
        rows, width = hidden.shape[1], self.plan.width
        parts = [hidden[:, start : start + width] for start in range(0, rows, width)]
        logits = [super(ExactTarget, self).logits_from_hidden(_pad(part, width)) for part in parts]
        return mx.concatenate(logits, axis=1)[:, :rows]


def _pad(rows: mx.array, width: int) -> mx.array:
    """(1, T, ...) -> (1, width, ...): the last row again and again."""
    missing = width - rows.shape[1]
    return mx.concatenate([rows, *[rows[:, -1:]] * missing], axis=1) if missing else rows


def find_plan(
    target: Target,
    width: int = DEFAULT_WIDTH,
    contexts: Sequence[int] | None = None,
    tokens: int | None = None,
) -> ExactPlan:
    """The cheapest way that is exact here for blocks of up to `width` rows, by measurement.

    Tried in turn: passes as they are; a fixed number of keys; padding at `width`, 16 and 4 rows,
    unless as wide a block is exact without; then what is exact for narrower blocks. contexts:
    tokens before the checked ones. Raises ExactUnavailable, saying what differed and by how much,
    where nothing is.
    """
    contexts = contexts or (CPU_CONTEXTS if on_cpu() else GPU_CONTEXTS)
    tokens = tokens or (CHECK_TOKENS if on_cpu() else GPU_CHECK_TOKENS)
    today = date.today().isoformat()
    narrow: list[ExactPlan] = []
    problems: list[str] = []
    for plan in _plans(target, width):
        free = next((one for one in narrow if plan.pads and one.width >= plan.width), None)
        if free is not None:
            return free
        found = exact_width(ExactTarget(target, plan), plan, contexts, tokens)
        measured = replace(plan, width=found.width, date=today)
        if found.width >= (plan.width if plan.pads else min(width, plan.width)):
            return measured
        narrow += [measured] if found.width > 1 else []
        if found.problem is not None:
            problems.append(f"{plan.describe()}: {found.problem.describe()}")
    if narrow:
        return narrow[0]
    raise ExactUnavailable(
        f"{target.config.path}: no way was found on this device to make a row independent of the "
        f"others in its pass, so nothing was decoded ({'; '.join(problems)}); run without --exact"
    )


@dataclass(frozen=True)
class ExactWidth:
    """The widest block up to which all are exact (1: none is), and what ended the search."""

    width: int
    problem: Agreement | None


def exact_width(
    target: Target, plan: ExactPlan, contexts: Sequence[int], tokens: int
) -> ExactWidth:
    """How wide a block may be under a plan; a padded plan has its own width, or none."""
    width, problem = plan.width, None
    while width > 1:
        found = _first_problem(target, replace(plan, width=width), contexts, tokens)
        if found is None:
            break
        problem = problem or found
        width = 1 if plan.pads else found.width - 1
    return ExactWidth(width, problem)


def _first_problem(
    target: Target, plan: ExactPlan, contexts: Sequence[int], tokens: int
) -> Agreement | None:
    for context in contexts:
        if plan.pads:
            checks = iter([agree_in_every_way(target, plan.width, context, tokens)])
        else:
            checks = agree_up_to(target, plan.width, context, tokens)
        found = next((one for one in checks if not one.holds), None)
        if found is not None:
            return found
    return None


def _plans(target: Target, width: int) -> Iterator[ExactPlan]:
    """What can be tried, cheapest first. Rows of sliding layers as they are cannot be exact: single
    ones stand in a ring, a block's in order. The fused kernels bring their own attention, which no
    fixed number of keys and no padding concerns, and know how wide they are exact by construction:
    what a measurement might pass by luck is not tried."""
    known = target.independent_rows
    if known is not None:
        if known > 1:
            yield ExactPlan(known, pads=False)
        return
    if not slides(target):
        yield ExactPlan(MAX_WIDTH, pads=False)
    yield ExactPlan(MAX_WIDTH, pads=False, fixes_keys=True)
    for padded in dict.fromkeys((width, *PADDED_WIDTHS)):
        yield ExactPlan(padded, pads=True)


def exact_base(target: Target) -> Target:
    """What a plan is looked for on: the target itself, or mlx-lm's modules alone where the fused
    kernels do not take all of it."""
    if target.independent_rows == 1:
        return Target(target.backbone.stock, target.config)
    return target


def slides(target: Target) -> bool:
    """Whether some layer sees a window of the tokens before it."""
    return any(window_of(layer) is not None for layer in target.backbone.make_cache())
