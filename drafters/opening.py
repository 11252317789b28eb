"""Drafters for a target: found by configs and headers before the target's big load, opened after.

So an explicit --speculation fails early, and `auto` knows why it goes another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..core.errors import DflashError
from ..core.options import LoadOptions, Speculation
from ..core.report import Report
from .locate import find_drafter
from .methods.method import Candidate
from .methods.mtp import head_given_as_drafter
from .methods.table import methods_for
from .routes import Attempt, choose_route

if TYPE_CHECKING:
    from ..core.checkpoint.target_config import TargetConfig
    from ..core.decode.drafter import Drafter

T = TypeVar("T")


@dataclass(frozen=True)
class OpenedDrafters:
    """What came of the candidates, in the order in which they were tried.

    problems: (method, why its drafter is not there).
    """

    drafters: tuple[Drafter, ...]
    attempts: tuple[Attempt, ...]
    problems: tuple[tuple[str, str], ...]


def find_candidates(
    target: TargetConfig, loading: LoadOptions, report: Report
) -> tuple[Candidate, ...]:
    """A candidate of each method that the --speculation value tries; none for `none`.

    Under auto, files that were found beside the target and cannot be used become a candidate's
    problem. Files that the user named, and those of an explicit value, raise what is wrong with
    them; an explicit value raises RouteUnavailable where there are none.
    """
    asked = head_given_as_drafter(loading)
    drafter = find_drafter(loading.model, loading.drafter)
    resolved = head_given_as_drafter(replace(loading, drafter=drafter))
    candidates = []
    for method in methods_for(loading.speculation):
        named = method.is_named(asked)
        find = partial(method.find, target, resolved, report)
        found, problem = tolerate(loading.speculation == "auto" and not named, find)
        candidate = found or Candidate(problem=problem)
        candidates.append(replace(candidate, method=method.speculation, named=named))
    if not any(candidate.load for candidate in candidates):
        choose_route(loading.speculation, [Attempt(problem=one.problem) for one in candidates])
    return tuple(candidates)


def open_candidates(
    candidates: Sequence[Candidate],
    speculation: Speculation,
    open_one: Callable[[Candidate], Drafter],
    *,
    reserve: bool,
) -> OpenedDrafters:
    """Open the first candidate that opens and, with `reserve`, the others too.

    open_one: loads a candidate that has something to load. Raises as it does, but under auto,
    where what it raises of files that nobody named becomes a problem.
    """
    drafters: list[Drafter] = []
    attempts: list[Attempt] = []
    problems: list[tuple[str, str]] = []
    for candidate in candidates:
        if drafters and not reserve:
            break
        opened, problem = None, candidate.problem
        if candidate.load is not None:
            tolerant = speculation == "auto" and not candidate.named
            opened, problem = tolerate(tolerant, partial(open_one, candidate))
        if opened is not None:
            drafters.append(opened)
        attempts.append(Attempt(opened.name if opened is not None else None, problem))
        problems += [(candidate.method, problem)] if problem else []
    return OpenedDrafters(tuple(drafters), tuple(attempts), tuple(problems))


def tolerate(tolerant: bool, action: Callable[[], T]) -> tuple[T | None, str]:
    """(result, ""), or where that is tolerated (None, why not); else it raises."""
    try:
        return action(), ""
    except DflashError as exc:
        if not tolerant:
            raise
        return None, str(exc)
