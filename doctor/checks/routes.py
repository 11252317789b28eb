"""The route that each `--speculation` value would take, by the very function that chooses it."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import RouteUnavailable
from ...core.options import SPECULATION_VALUES
from ...drafters.routes import Attempt, choose_route
from ..results import CheckResult, RouteFinding


def find_routes(
    checks: Sequence[CheckResult], drafter: str | None, has_head: bool
) -> tuple[RouteFinding, ...]:
    """drafter: kind of the drafter that was checked, None where none was given; has_head: an MTP
    head was found."""
    target_problem = _first_failure(checks, ("target",))
    attempts = {
        "dflash": _attempt(checks, ("drafter", "pair"), drafter, "no drafter was given"),
        "mtp": _attempt(checks, ("mtp",), "mtp" if has_head else None, "no MTP head was found"),
    }
    found: list[RouteFinding] = []
    for value in SPECULATION_VALUES:
        if target_problem is not None:
            found.append(RouteFinding(value, None, target_problem))
            continue
        tried = [attempt for kind, attempt in attempts.items() if value in ("auto", kind)]
        try:
            route = choose_route(value, tried)
            found.append(RouteFinding(value, route.route, route.reason))
        except RouteUnavailable as error:
            found.append(RouteFinding(value, None, str(error)))
    return tuple(found)


def _attempt(
    checks: Sequence[CheckResult], groups: Sequence[str], name: str | None, absent: str
) -> Attempt:
    problem = _first_failure(checks, groups)
    if problem is not None:
        return Attempt(problem=problem)
    return Attempt(name) if name is not None else Attempt(problem=absent)


def _first_failure(checks: Sequence[CheckResult], groups: Sequence[str]) -> str | None:
    failures = (check for check in checks if check.status == "fail" and check.group in groups)
    return next((f"{check.name} failed" for check in failures), None)
