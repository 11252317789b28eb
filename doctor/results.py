"""What a check says, and a whole diagnosis; typed data only, the command prints it.

The JSON document (`dflash.doctor/1`):

    {"schema": "dflash.doctor/1", "model": str | null, "drafter": str | null,
     "summary": {"pass": int, "warn": int, "fail": int},
     "checks": [{"name": "group.check", "status": "pass" | "warn" | "fail",
                 "found": str, "expected": str, "fix": str}],
     "not_reached": ["group.check"],
     "routes": [{"requested": str, "route": str | null, "reason": str}],
     "probe": {...}}

`probe` is there where --probe was given and no failure kept it from being made; see
probe_report.py. `fix` is empty where a check passed. `not_reached` lists the checks that an
earlier failure left without anything to look at. A route of null would end `generate` with exit
code 1. Keys are only ever added under this version.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .probe.report import ProbeReport

Status = Literal["pass", "warn", "fail"]
SCHEMA = "dflash.doctor/1"


@dataclass(frozen=True)
class CheckResult:
    """One finding. name: `group.check`; fix: what to do, empty where the check passed."""

    name: str
    status: Status
    found: str
    expected: str
    fix: str = ""

    @property
    def group(self) -> str:
        """`machine`, `target`, `drafter` or `pair`."""
        return self.name.split(".")[0]


class NotReached(Exception):
    """A check has nothing to look at, because what it needs failed (and was reported there)."""


@dataclass(frozen=True)
class RouteFinding:
    """What `--speculation requested` would do: route None ends with exit code 1."""

    requested: str
    route: str | None
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found about one target, drafter, pair or machine."""

    model: str | None
    drafter: str | None
    checks: tuple[CheckResult, ...]
    not_reached: tuple[str, ...] = ()
    routes: tuple[RouteFinding, ...] = ()

    def count(self, status: Status) -> int:
        """Number of findings of one status."""
        return sum(check.status == status for check in self.checks)

    def is_healthy(self, strict: bool = False) -> bool:
        """No failure; with `strict` no warning of what was given either.

        A warning about the machine (its BLAS, its disk) says nothing of the target or the drafter.
        """
        warned = any(one.status == "warn" and one.group != "machine" for one in self.checks)
        return not self.count("fail") and not (strict and warned)

    def to_dict(self, probe: ProbeReport | None = None) -> dict[str, Any]:
        """The JSON document of the module's docstring; probe: what --probe found."""
        document = {
            "schema": SCHEMA,
            "model": self.model,
            "drafter": self.drafter,
            "summary": {status: self.count(status) for status in ("pass", "warn", "fail")},
            "checks": [asdict(check) for check in self.checks],
            "not_reached": list(self.not_reached),
            "routes": [asdict(route) for route in self.routes],
        }
        return document if probe is None else {**document, "probe": probe.to_dict()}
