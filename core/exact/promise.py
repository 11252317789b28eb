"""What may be said of a request's ids: identical to plain decoding's, and on what evidence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from ..device import on_cpu
from ..errors import ExactUnavailable
from ..probe_store import Note, load_probe, probe_key, save_probe
from ..target.target import Target
from .agreement import blocks_agree
from .exact_plan import ExactPlan
from .plan import ExactTarget, exact_base, find_plan, slides

if TYPE_CHECKING:
    from ..decode.loop import Generation

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

    wanted: True: by a plan, at any cost; False: as it is, unchecked; None: as it is, and on the
    CPU, where plain decoding stays mlx-lm's own bit for bit, blocks of up to `rows` rows (1: no
    drafter) are compared with single rows. Elsewhere a stored plan by which passes run as they
    are is taken, since it costs nothing, and nothing is measured. stored: a plan of a stored
    probe is not measured again, and one that is measured is stored; note: told where that goes
    wrong. Raises ExactUnavailable where a plan is wanted and there is none.
    """
    if wanted is False or (wanted is None and (rows < 2 or not runs_as_planned(target))):
        return target, Promise()
    if wanted:
        target = exact_base(target)
    known = _stored_plan(target, note) if stored else None
    if wanted:
        plan = known or _measured_plan(target, stored, note)
        return ExactTarget(target, plan), Promise(plan, asked=True)
    if known is not None and not known.has_fixed_keys and known.width >= rows:
        return target, Promise(known)
    return target, _short_check(target, rows) if on_cpu() else Promise()


def runs_as_planned(target: Target) -> bool:
    """Whether a plan that neither pads nor fixes keys is what the target does anyway: on the CPU,
    and where the suite's kernels take all of it."""
    return on_cpu() or (target.independent_rows or 1) > 1


def _stored_plan(target: Target, note: Note) -> ExactPlan | None:
    key = probe_key(target)
    probe = load_probe(key, note) if key is not None else None
    return None if probe is None else ExactPlan.from_stored(probe)


def _measured_plan(target: Target, store: bool, note: Note) -> ExactPlan:
    plan = find_plan(target)
    key = probe_key(target) if store else None
    if key is not None:
        try:
            save_probe(key, plan.to_stored())
        except OSError as exc:
            note(f"the exact plan could not be stored: {exc}")
    return plan


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
