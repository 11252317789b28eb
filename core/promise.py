"""What may be said of a request's ids: identical to plain decoding's, and on what evidence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from math import inf
from typing import TYPE_CHECKING, Any

from .agreement import blocks_agree
from .device import on_cpu
from .errors import ExactUnavailable
from .exact import ExactPlan, ExactTarget, find_plan, slides
from .probes import Note, StoredProbe, load_probe, probe_key, save_probe
from .target import Target

if TYPE_CHECKING:
    from .decode import Generation

FREE = 1.03
"""A pass that costs no more than so many of one as it is makes its plan the default."""
NOT_VERIFIED = "not verified on this device"
IDENTICAL = "identical here"


@dataclass(frozen=True)
class Promise:
    """What was measured of a loaded target's rows.

    plan: by which they are exact, None where that is not known; asked: by --exact, so that the
    target runs by the plan whatever it costs; problem: what a check found, where one failed.
    """

    plan: ExactPlan | None = None
    asked: bool = False
    problem: str = ""

    def describe(self, rows: int, *, shared: bool = False) -> str:
        """For a request with blocks of up to `rows` rows.

        shared: it went on with another request's rows, which are exact on the CPU alone.
        """
        plan = self.plan
        if plan is None or rows > plan.width or (shared and not on_cpu()):
            return f"{NOT_VERIFIED} ({self.problem})" if self.problem else NOT_VERIFIED
        if plan.checked == "stored":
            return f"exact: verified on this device on {plan.date} (stored probe)"
        return f"{IDENTICAL} ({plan.describe()}, checked at load)"

    def statement(self, generation: Generation) -> str | None:
        """For a request that ran; None where nothing is to be said: of plain decoding that is what
        it is anyway, and of a sample, whose ids are the draws' own."""
        blocks = generation.blocks.values()
        if not generation.options.sampling.greedy or not (blocks or self.asked):
            return None
        rows = max((block.effective for block in blocks), default=1)
        return self.describe(rows, shared=generation.stats.reused_tokens > 0)

    def to_dict(self, generation: Generation) -> dict[str, Any]:
        """The `identity` object of `--json`."""
        return {
            "statement": self.statement(generation),
            "exact": self.asked,
            "plan": self.plan.to_dict() if self.plan else None,
        }


def keep_exact(
    target: Target,
    wanted: bool | None,
    rows: int,
    *,
    stored: bool = True,
    note: Note = lambda message: None,
) -> tuple[Target, Promise]:
    """The target as requests shall use it, and what it promises.

    wanted: True: by a plan, at any cost; False: as it is, unchecked; None: as it is, unless a
    stored plan costs next to nothing; on the CPU blocks of up to `rows` rows (1: no drafter) are
    compared with single rows, and the fused kernels are measured once. stored: a plan of a stored
    probe is not measured again, and one that is measured is stored; note: told where that goes
    wrong. Raises ExactUnavailable where a plan is wanted and there is none.
    """
    if wanted is False or (wanted is None and rows < 2):
        return target, Promise()
    known = _stored_plan(target, note) if stored else None
    if wanted:
        plan = known.plan if known else _measured_plan(target, stored, note)
        return ExactTarget(target, plan), Promise(plan, asked=True)
    if known is not None and not known.plan.has_fixed_keys:
        return target, Promise(known.plan)
    if on_cpu():  # where plain decoding stays mlx-lm's own, bit for bit
        return target, _short_check(target, rows)
    if known is not None and known.cost <= FREE:
        return ExactTarget(target, known.plan), Promise(known.plan)
    if known is None and stored and target.is_fused:  # measured once, and free from then on
        return target, _fused_check(target, note)
    return target, Promise()


@dataclass(frozen=True)
class StoredPlan:
    """A plan of a stored probe; cost: of its pass over one as it is, at the worst context."""

    plan: ExactPlan
    cost: float


def _stored_plan(target: Target, note: Note) -> StoredPlan | None:
    key = probe_key(target)
    probe = load_probe(key, note) if key is not None else None
    if probe is None or probe.exact_width is None:
        return None
    plan = ExactPlan(
        probe.exact_width, probe.exact_pads, "stored", probe.date, probe.exact_fixes_keys
    )
    return StoredPlan(plan, _worst(probe.details.get("exact_cost")))


def _worst(costs: object) -> float:
    """The largest of {context: ratio}; infinite where that is not what it is."""
    ratios = list(costs.values()) if isinstance(costs, dict) else []
    if not ratios or not all(isinstance(ratio, int | float) for ratio in ratios):
        return inf
    return float(max(ratios))


def _measured_plan(target: Target, store: bool, note: Note) -> ExactPlan:
    plan = find_plan(target)
    key = probe_key(target) if store else None
    if key is not None:
        found = StoredProbe(plan.date, plan.width, plan.pads, plan.fixes_keys)
        try:
            save_probe(key, found)
        except OSError as exc:
            note(f"the exact plan could not be stored: {exc}")
    return plan


def _fused_check(target: Target, note: Note) -> Promise:
    try:
        return Promise(_measured_plan(target, True, note))
    except ExactUnavailable as exc:
        return Promise(problem=str(exc))


def _short_check(target: Target, rows: int) -> Promise:
    if slides(target):
        return Promise(problem="a sliding layer's blocks and single rows sum in another order")
    try:
        found = blocks_agree(target, rows)
    except ExactUnavailable as exc:
        return Promise(problem=str(exc))
    if not found.holds:
        return Promise(problem=found.describe())
    return Promise(ExactPlan(rows, pads=False, date=date.today().isoformat()))
