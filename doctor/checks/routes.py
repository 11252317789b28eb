"""The route that each `--speculation` value would take, by the very function that chooses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...core.errors import RouteUnavailable
from ...core.options import SPECULATION_VALUES, Speculation
from ...drafters.methods.method import Method
from ...drafters.methods.table import methods_for
from ...drafters.routes import Attempt, choose_route
from ..results import CheckResult, RouteFinding


def find_routes(
    checks: Sequence[CheckResult], found: Mapping[str, str | None], named: Collection[str] = ()
) -> tuple[RouteFinding, ...]:
    """found: by method (`dflash`, `mtp`) the name of the drafter that was checked, or None; named:
    the methods whose files the user named, which `auto` may not pass over."""
    target_problem = _first_failure(checks, ("target",))
    routes: list[RouteFinding] = []
    for value in SPECULATION_VALUES:
        if target_problem is not None:
            routes.append(RouteFinding(value, None, target_problem))
            continue
        wrong = _named_failure(checks, value, named)
        if wrong is not None:
            routes.append(RouteFinding(value, None, wrong))
            continue
        tried = [
            _attempt(checks, method, found.get(method.speculation)) for method in methods_for(value)
        ]
        try:
            route = choose_route(value, tried)
            routes.append(RouteFinding(value, route.route, route.reason))
        except RouteUnavailable as error:
            routes.append(RouteFinding(value, None, str(error)))
    return tuple(routes)


def _named_failure(
    checks: Sequence[CheckResult], value: Speculation, named: Collection[str]
) -> str | None:
    """What is wrong with files that the user named and this value would use."""
    for method in methods_for(value):
        problem = _first_failure(checks, method.check_groups)
        if method.speculation in named and problem is not None:
            return problem
    return None


def _attempt(checks: Sequence[CheckResult], method: Method, name: str | None) -> Attempt:
    problem = _first_failure(checks, method.check_groups)
    if problem is not None:
        return Attempt(problem=problem)
    return Attempt(name) if name is not None else Attempt(problem=method.absent)


def _first_failure(checks: Sequence[CheckResult], groups: Sequence[str]) -> str | None:
    failures = (check for check in checks if check.status == "fail" and check.group in groups)
    return next((f"{check.name} failed" for check in failures), None)
