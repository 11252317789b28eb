"""The shape of a check, and how a list of them is run.

A check is one function of a subject. What it reads from the subject it reads through guards that
the loaders call too, so a DflashError is a failure that `generate` would end with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...core.errors import DflashError, resource_errors
from ..results import CheckResult, NotReached

S = TypeVar("S")


@dataclass(frozen=True)
class Words:
    """What a check is called, what it expects, and what to do where it does not find that."""

    name: str
    expected: str
    fix: str

    def passed(self, found: str) -> CheckResult:
        """All is well."""
        return CheckResult(self.name, "pass", found, self.expected)

    def warned(self, found: str, fix: str | None = None) -> CheckResult:
        """It runs, but not as well as it could."""
        return CheckResult(self.name, "warn", found, self.expected, fix or self.fix)

    def failed(self, error: DflashError) -> CheckResult:
        """A loader would end with this very error; its advice is not said twice."""
        found = str(error).removesuffix(self.fix).rstrip(";. ")
        return CheckResult(self.name, "fail", found, self.expected, self.fix)


@dataclass(frozen=True)
class Check(Generic[S]):
    """A named function of a subject."""

    words: Words
    function: Callable[[Words, S], CheckResult]

    def __call__(self, subject: S) -> CheckResult:
        """The finding; raises NotReached where an earlier failure left nothing to look at."""
        try:
            with resource_errors():
                return self.function(self.words, subject)
        except DflashError as error:
            return self.words.failed(error)


def check(
    name: str, expected: str, fix: str
) -> Callable[[Callable[[Words, S], CheckResult]], Check[S]]:
    """Make a function a check; it gets its own words first, then the subject."""

    def named(function: Callable[[Words, S], CheckResult]) -> Check[S]:
        return Check(Words(name, expected, fix), function)

    return named


def run_checks(checks: Iterable[Check[S]], subject: S) -> tuple[list[CheckResult], list[str]]:
    """(findings, names of the checks that could not be reached), in order."""
    results: list[CheckResult] = []
    not_reached: list[str] = []
    for one in checks:
        try:
            results.append(one(subject))
        except NotReached:
            not_reached.append(one.words.name)
    return results, not_reached
