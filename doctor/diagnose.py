"""The whole diagnosis of a machine, a target, a drafter or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..core.errors import DflashError, resource_errors
from ..drafters.locate import find_drafter
from ..drafters.mtp.find import is_head_folder
from .checks.check import Check, Words, run_checks
from .checks.content import drafter_content, target_content
from .checks.download import DOWNLOAD_CHECKS
from .checks.drafter import DRAFTER_CHECKS
from .checks.machine import MACHINE_CHECKS, Machine
from .checks.mtp import MTP_CHECKS, MtpSubject
from .checks.pair import PAIR_CHECKS
from .checks.routes import find_routes
from .checks.subjects import DrafterSubject, PairSubject, TargetSubject, is_drafter
from .checks.target import TARGET_CHECKS
from .remote import Opened, expected_download, opened, renamed
from .results import CheckResult, Diagnosis

S = TypeVar("S")
NO_DRAFTER = Words(
    "pair.drafter",
    "a drafter, from --drafter or MODEL/drafter",
    "give one with --drafter DIR, or put it into MODEL/drafter",
)


def diagnose(
    model: str | None, drafter: str | None, machine: Machine, verify: bool = False
) -> Diagnosis:
    """Check the machine, and what is given of target and drafter, cheapest first.

    model: a target, or a drafter alone; without either only the machine is checked. verify: also
    read all data that has a known hash. Never raises a DflashError: what a loader would raise is
    a finding.
    """
    with ExitStack() as stack:
        findings = Findings(stack, machine, verify)
        findings.run(MACHINE_CHECKS, machine)
        if model is None:
            if drafter is not None:
                findings.drafter(drafter)
            return findings.diagnosis(None, drafter)
        opened_target = findings.open(model, TARGET_CHECKS)
        reference = find_drafter(model, drafter)
        if opened_target is not None and reference is None and is_drafter(opened_target.path):
            findings.check_drafter(opened_target)
            return findings.diagnosis(None, model)
        target = findings.check_target(opened_target) if opened_target is not None else None
        drafter_kind, has_head = findings.drafters(target, reference)
        diagnosis = findings.diagnosis(model, reference)
        found = {"dflash": drafter_kind, "mtp": "mtp" if has_head else None}
        named = () if drafter is None else ("dflash",) if drafter_kind else ("dflash", "mtp")
        return replace(diagnosis, routes=find_routes(diagnosis.checks, found, named))


class Findings:
    """Collects results; directories stay open as long as `stack` does."""

    def __init__(self, stack: ExitStack, machine: Machine, verify: bool) -> None:
        self._stack = stack
        self._machine = machine
        self._verify = verify
        self._checks: list[CheckResult] = []
        self._not_reached: list[str] = []
        self._places: list[tuple[Path, str]] = []
        self._opened: dict[str, Opened] = {}

    def run(self, checks: Sequence[Check[S]], subject: S) -> None:
        """Run a list of checks."""
        results, not_reached = run_checks(checks, subject)
        self._checks += results
        self._not_reached += not_reached

    def skip(self, checks: Sequence[Check[S]]) -> None:
        """Checks that there is nothing to run on."""
        self._not_reached += [check.words.name for check in checks]

    def open(self, reference: str, checks: Sequence[Check[S]]) -> Opened | None:
        """The directory of a reference; without one the first check fails, and it is None."""
        try:
            with resource_errors():
                found = self._enter(reference)
        except DflashError as error:
            self._checks.append(checks[0].words.failed(error))
            self.skip(checks[1:])
            return None
        return found

    def _enter(self, reference: str) -> Opened:
        """Open a reference once, however often it is asked for."""
        if reference not in self._opened:
            found = self._stack.enter_context(opened(reference))
            self._opened[reference] = found
            if found.path.is_absolute():
                self._places.append((found.path, reference))
        return self._opened[reference]

    def check_target(self, found: Opened) -> TargetSubject:
        """Check a target alone."""
        target = TargetSubject(found.path, self._machine, found.is_mirror)
        self.run(TARGET_CHECKS, target)
        if self._verify and not found.is_mirror:
            self.run([target_content], target)
        return target

    def check_drafter(self, found: Opened) -> DrafterSubject:
        """Check a drafter alone."""
        drafter = DrafterSubject(found.path, self._machine, found.is_mirror, self._verify)
        self.run(DRAFTER_CHECKS, drafter)
        if self._verify and not found.is_mirror:
            self.run([drafter_content], drafter)
        return drafter

    def drafter(self, reference: str) -> DrafterSubject | None:
        """Open and check a drafter."""
        found = self.open(reference, DRAFTER_CHECKS)
        return None if found is None else self.check_drafter(found)

    def drafters(
        self, target: TargetSubject | None, reference: str | None
    ) -> tuple[str | None, bool]:
        """Check drafter, pair and MTP head; returns (the drafter's kind, whether there is a head).

        A reference to an MTP head's folder stands for the head, as in generate.
        """
        folder = None if reference is None else self._head_folder(reference)
        kind = None
        if folder is None and reference is not None:
            kind = self.pair(target, reference)
        elif reference is None:
            self._checks.append(NO_DRAFTER.warned("no drafter given"))
        if target is None:
            self.skip(MTP_CHECKS)
            return kind, False
        head = MtpSubject(target, folder, has_drafter=kind is not None)
        self.run(MTP_CHECKS[:1], head)
        if head.is_present:
            self.run(MTP_CHECKS[1:], head)
        return kind, head.is_present

    def pair(self, target: TargetSubject | None, reference: str) -> str | None:
        """Check a drafter and how it fits; returns its kind, None where that failed."""
        subject = self.drafter(reference)
        if subject is None or target is None:
            self.skip(PAIR_CHECKS)
        else:
            self.run(PAIR_CHECKS, PairSubject(target, subject))
        return subject.known_kind if subject is not None else None

    def _head_folder(self, reference: str) -> Path | None:
        """The directory of a reference that holds an MTP head and nothing else."""
        try:
            with resource_errors():
                found = self._enter(reference)
        except DflashError:
            return None  # reported as a drafter's
        return found.path if not is_drafter(found.path) and is_head_folder(found.path) else None

    def downloads(self) -> None:
        """Whether there is room for what was only looked at from afar."""
        mirrors = [found.path for found in self._opened.values() if found.is_mirror]
        if mirrors:
            self.run(DOWNLOAD_CHECKS, expected_download(mirrors))

    def diagnosis(self, model: str | None, drafter: str | None) -> Diagnosis:
        """What was found, under the names that the user gave."""
        self.downloads()
        checks = [
            replace(result, found=renamed(result.found, self._places)) for result in self._checks
        ]
        return Diagnosis(model, drafter, tuple(checks), tuple(self._not_reached))
