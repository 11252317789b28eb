"""A diagnosis for people: readable at 80 columns and without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from ...doctor.results import CheckResult, Diagnosis, RouteFinding
from .terminal import escaped, text_console

STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}
INDENT = 5 + 13
"""The status and the longest name within a group, `quantization`."""
ROUTE_INDENT = 8 + 12
MOST_COLUMNS = 100
"""Longer lines are hard to read, however wide the terminal."""
FEWEST_COLUMNS = 20
"""Of a text: what is narrower is broken by the terminal, not here."""


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Write all findings to stdout."""
    console = text_console(soft_wrap=True)
    for line in format_diagnosis(diagnosis, min(console.width, MOST_COLUMNS)):
        if console.is_terminal:  # style spans go by characters: a line with controls has none
            line = line if escaped(line.plain) == line.plain else Text(escaped(line.plain))
        console.print(line)


def format_diagnosis(diagnosis: Diagnosis, columns: int = 80) -> Iterator[Text]:
    """Lines: the groups of findings, the routes, and last the count."""
    for group in dict.fromkeys(result.group for result in diagnosis.checks):
        yield Text(_title(group, diagnosis), style="bold")
        for result in diagnosis.checks:
            if result.group == group:
                yield from _finding(result, columns)
    if diagnosis.not_reached:
        names = "not reached: " + ", ".join(diagnosis.not_reached)
        yield from (
            Text(line)
            for line in textwrap.wrap(names, max(columns, FEWEST_COLUMNS), subsequent_indent="  ")
        )
    if diagnosis.routes:
        yield Text("routes of dflash generate", style="bold")
        for finding in diagnosis.routes:
            yield from _route(finding, columns)
    yield Text(summary(diagnosis), style="bold")


def summary(diagnosis: Diagnosis) -> str:
    """The count, one line."""
    counts = ((diagnosis.count("warn"), "warning"), (diagnosis.count("fail"), "failure"))
    named = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts]
    return ", ".join([f"{diagnosis.count('pass')} passed", *named])


def _title(group: str, diagnosis: Diagnosis) -> str:
    named = {"target": diagnosis.model, "drafter": diagnosis.drafter}.get(group)
    return f"{group} {named}" if named else group


def _finding(result: CheckResult, columns: int) -> Iterator[Text]:
    name = result.name.split(".", 1)[1]
    head = f"{result.status.upper()} {name}".ljust(INDENT - 1) + " "
    first, *rest = _hang(head, result.found, columns)
    status = len(result.status)
    yield Text.assemble((first[:status], STYLES[result.status]), first[status:])
    yield from map(Text, rest)
    if result.status != "pass":
        for label, text in (("expected: ", result.expected), ("do:       ", result.fix)):
            yield from map(Text, _hang(" " * INDENT + label, text, columns))


def _route(finding: RouteFinding, columns: int) -> Iterator[Text]:
    head = f"{finding.requested:<7} -> {finding.route or '-'}".ljust(ROUTE_INDENT - 1) + " "
    return map(Text, _hang(head, finding.reason, columns))


def _hang(head: str, text: str, columns: int) -> list[str]:
    """`text` after `head`, continued under its own start; long paths are never broken."""
    width = max(columns - len(head), FEWEST_COLUMNS)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [head + lines[0], *(" " * len(head) + line for line in lines[1:])]
