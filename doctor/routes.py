"""The route that each `--speculation` value would take, by the very function that chooses it."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import RouteUnavailable
from ..core.options import SPECULATION_VALUES
from ..drafters.routes import choose_route
from .results import CheckResult, RouteFinding

NOT_BUILT = ("mtp",)
"""Values that are planned and not there yet; shown as that."""


def find_routes(checks: Sequence[CheckResult], drafter: str | None) -> tuple[RouteFinding, ...]:
    """drafter: name of the drafter that was checked, None where none was given."""
    target_problem = _first_failure(checks, ("target",))
    drafter_problem = _first_failure(checks, ("drafter", "pair"))
    found: list[RouteFinding] = []
    for value in SPECULATION_VALUES:
        if target_problem is not None:
            found.append(RouteFinding(value, None, target_problem))
            continue
        usable = drafter if drafter_problem is None else None
        try:
            route = choose_route(value, usable, drafter_problem)
            found.append(RouteFinding(value, route.route, route.reason))
        except RouteUnavailable as error:
            found.append(RouteFinding(value, None, str(error)))
    known = [finding.requested for finding in found]
    missing = [value for value in NOT_BUILT if value not in known]
    found += [RouteFinding(value, None, "not built yet in this version") for value in missing]
    return tuple(found)


def _first_failure(checks: Sequence[CheckResult], groups: Sequence[str]) -> str | None:
    failures = (check for check in checks if check.status == "fail" and check.group in groups)
    return next((f"{check.name} failed" for check in failures), None)
