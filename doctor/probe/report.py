"""What `dflash doctor --probe` found; typed data only, the command prints it.

The `probe` object of the JSON document:

    {"date": "YYYY-MM-DD", "subject": {"model", "dtype", "kernels", "device", "mlx", "mlx_lm", ...},
     "rows": [{"way": "one row" | "same width", "plan": "as they are" | "fixed keys" | "padded",
               "width", "context", "rows", "equal", "largest_difference", "flips",
               "smallest_margin", "caches"}],
     "rows_problem": str, "exact": {"width", "pads", "fixes_keys", ...} | null,
     "exact_problem": str, "exact_cost": {"context": ratio}, "exact_plain_cost": {...},
     "costs": [{"context", "plain_sec", "pass_sec": {"rows": sec}, "draft_sec": {name: {...}}}],
     "drafts": [{"name", "bits", "trained", "accept": [...], "forecast": [...], "best_block",
                 "pays": bool}],
     "stored": [path], "notes": [str]}

Times are medians in seconds on this device, at this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...core.exact.agreement import Agreement
from ...core.exact.exact_plan import ExactPlan, PassWay
from .acceptance import AcceptCurve
from .costs import ContextCosts
from .forecast import BlockForecast

Way = Literal["one row", "same width"]


@dataclass(frozen=True)
class RowsFinding:
    """Are rows the same bits? way: against passes of one row, or of the same width; plan: how the
    passes ran."""

    way: Way
    plan: PassWay
    agreement: Agreement

    def to_dict(self) -> dict[str, Any]:
        """An entry of `rows`."""
        return {"way": self.way, "plan": self.plan, **asdict(self.agreement)}


@dataclass(frozen=True)
class DraftFinding:
    """One drafter. bits: of its projections, None for an MTP head; trained: its block, None where
    it is chained; profiles: by block; best: the block with the best predicted speed-up."""

    name: str
    bits: int | None
    trained: int | None
    profiles: Mapping[int, AcceptCurve]
    forecasts: tuple[BlockForecast, ...]
    best: int

    @property
    def pays(self) -> bool:
        """Whether the best block is predicted to beat plain decoding at every context."""
        return all(one.speedup > 1 for one in self.forecasts if one.block == self.best)

    @property
    def differing(self) -> int:
        """Answers whose ids were not those of plain decoding, over all blocks that were run."""
        return sum(profile.differing for profile in self.profiles.values())

    @property
    def answers(self) -> int:
        """Answers that were compared."""
        return sum(profile.answers for profile in self.profiles.values())

    def to_dict(self) -> dict[str, Any]:
        """An entry of `drafts`."""
        return {
            "name": self.name,
            "bits": self.bits,
            "trained": self.trained,
            "accept": [profile.to_dict() for profile in self.profiles.values()],
            "forecast": [one.to_dict() for one in self.forecasts],
            "best_block": self.best,
            "pays": self.pays,
        }


@dataclass(frozen=True)
class ExactFinding:
    """What `--exact` would do here. plan: None where nothing is exact, and `problem` says why;
    cost: by context, a pass of the plan's width over the same pass as it is; plain_cost: the same
    of a single row."""

    plan: ExactPlan | None = None
    problem: str = ""
    cost: tuple[tuple[int, float], ...] = ()
    plain_cost: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ProbeReport:
    """All findings. subject: what was measured and on what; rows_problem: why rows could not be
    compared; stored: files that were written; notes: what else is to be said."""

    date: str
    subject: Mapping[str, str]
    rows: tuple[RowsFinding, ...]
    rows_problem: str
    exact: ExactFinding
    costs: tuple[ContextCosts, ...]
    drafts: tuple[DraftFinding, ...]
    stored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The `probe` object of the module's docstring."""
        return {
            "date": self.date,
            "subject": dict(self.subject),
            "rows": [row.to_dict() for row in self.rows],
            "rows_problem": self.rows_problem,
            "exact": None if self.exact.plan is None else self.exact.plan.to_dict(),
            "exact_problem": self.exact.problem,
            "exact_cost": {str(context): ratio for context, ratio in self.exact.cost},
            "exact_plain_cost": {str(context): ratio for context, ratio in self.exact.plain_cost},
            "costs": [cost.to_dict() for cost in self.costs],
            "drafts": [draft.to_dict() for draft in self.drafts],
            "stored": list(self.stored),
            "notes": list(self.notes),
        }
