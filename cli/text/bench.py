"""A benchmark on the terminal: what was run, the tables, and what they say. Stdout only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from ...core.bench.report import BenchReport
from ...core.bench.sweep import Best
from ...core.exact.exact_plan import ExactPlan
from ...drafters.bench.prompts import kinds_of
from .bench_tables import Table, arm_labels, make_tables
from .terminal import styled, text_console, widened

WIDE = 1000
"""Columns where there is no terminal: more than any table has."""
GAP = 2
"""Between two columns: a padding and the box's own."""
LEAST_LABEL = 8
NAMED = ("requested", "route")
"""Settings that an arm's name already tells."""
VERDICTS = {
    "Faster than {} (99 %): ": "faster",
    "Slower than {} (99 %): ": "slower",
    "No difference to {} (99 %): ": "no difference",
    "Too few pairs for a verdict against {} (8 needed): ": "too few pairs",
}


def print_report(
    context: Mapping[str, Any],
    report: BenchReport,
    best: Best | None,
    console: Console | None = None,
) -> None:
    """Everything, for people; console: in place of stdout's."""
    console = console or text_console()
    for line in format_head(context, report):
        console.print(styled(console, line))
    print_tables(console, make_tables(report))
    for line in format_findings(report, best):
        console.print(styled(console, line))


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Each table, and its note below. On a terminal one that is too wide is continued below
    itself; elsewhere lines are as long as they must be, since nobody knows who reads them."""
    for table in tables:
        console.print(styled(console, table.title, "bold"), soft_wrap=not console.is_terminal)
        parts = fit_columns(table, console.width) if console.is_terminal else [table]
        for part in parts:
            width = max(console.width, table_width(part)) if console.is_terminal else WIDE
            widened(console, width).print(rich_table(console, part))
        console.print(styled(console, f"{table.note}\n" if table.note else "", "dim"))


def fit_columns(table: Table, columns: int) -> list[Table]:
    """The table in parts that fit, each with the label columns, which say what a row is of.

    A number is never cut: a part has at least one column beside the labels, however narrow the
    terminal is.
    """
    widths = [column_width(table, index) + GAP for index in range(len(table.columns))]
    others = sum(widths[1 : table.labels]) + max(widths[table.labels :], default=0)
    label = min(widths[0] - GAP, max(LEAST_LABEL, columns - others - GAP))
    labels = label + GAP + sum(widths[1 : table.labels])
    parts: list[list[int]] = [[]]
    used = labels
    for index in range(table.labels, len(widths)):
        if parts[-1] and used + widths[index] > columns:
            parts.append([])
            used = labels
        parts[-1].append(index)
        used += widths[index]
    folded = label if label < widths[0] - GAP else None
    return [_part(table, chosen, folded) for chosen in parts]


def column_width(table: Table, index: int) -> int:
    """Columns of the terminal that a column needs."""
    cells = [table.columns[index], *(row[index] for row in table.rows)]
    return max(len(line) for cell in cells for line in cell.split("\n"))


def table_width(table: Table) -> int:
    """Columns of the terminal that a table needs."""
    widths = [column_width(table, index) for index in range(len(table.columns))]
    if table.label_width is not None:
        widths[0] = table.label_width
    return sum(widths) + GAP * len(widths)


def _part(table: Table, chosen: Sequence[int], label: int | None) -> Table:
    """Some columns behind the labels; label: the width that the first one is folded to."""
    kept = [*range(table.labels), *chosen]
    places = {old: new for new, old in enumerate(kept)}
    return replace(
        table,
        columns=[table.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in table.rows],
        words=[places[index] for index in table.words if index in places],
        folding=places.get(table.folding) if table.folding is not None else None,
        label_width=label,
    )


def rich_table(console: Console, table: Table) -> RichTable:
    """Numbers are never cut or broken: columns of words fold where they must."""
    made = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, column in enumerate(table.columns):
        narrow = index == 0 and table.label_width is not None
        made.add_column(
            column,
            justify="left" if index in table.words else "right",
            overflow="fold",
            no_wrap=index != table.folding and not narrow,
            width=table.label_width if narrow else None,
        )
    for row in table.rows:
        made.add_row(*(styled(console, cell) for cell in row))
    return made


def format_head(context: Mapping[str, Any], report: BenchReport) -> list[str]:
    """Device, versions, settings, arms, and in what the arms differ."""
    device, versions, settings = context["device"], context["versions"], context["settings"]
    memory = device["memory_bytes"]
    kinds = kinds_of(report.prompts)
    return [
        *([f"PARTIAL: interrupted, {len(report.measured)} prompts measured"] * report.partial),
        f"device: {device['kind']}, {device['name']}, {device['cores']} cores"
        + (f", {memory / 1e9:.0f} GB" if memory else "")
        + f", {device['system']}",
        "versions: "
        + ", ".join(f"{name} {found}" for name, found in versions.items() if found)
        + f", commit {_short(context['commit'])}",
        f"target: {settings['target']}, computing in {settings['compute_dtype']}",
        *format_plan(settings.get("exact")),
        f"prompts: {len(report.prompts)} ("
        + ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        + f"), at most {settings['max_tokens']} tokens, {_count(settings['repeats'], 'repeat')}, "
        "batch 1, warm-up discarded",
        *format_arms(report),
        "",
    ]


def format_plan(plan: Mapping[str, Any] | None) -> list[str]:
    """The plan of --exact, where there is one."""
    if plan is None:
        return []
    found = ExactPlan.from_dict(plan)
    when = "measured now" if found.checked == "run" else found.date
    return [f"exact: {found.describe()}, {when}"]


def format_arms(report: BenchReport) -> list[str]:
    """One line an arm with what sets it apart; then in what they differ, and what they share."""
    settings = [arm.arm.settings for arm in report.arms]
    keys = [
        key for key in dict.fromkeys(key for one in settings for key in one) if key not in NAMED
    ]
    values = {key: [str(one[key]) for one in settings if key in one] for key in keys}
    differing = [key for key in keys if len(set(values[key])) > 1]
    own_keys = [key for key in keys if key in differing or len(values[key]) == 1]
    lines = []
    for name, own in zip(arm_labels(report), settings, strict=True):
        shown = [f"{_words(key)} {own[key]}" for key in own_keys if key in own]
        chosen = " (what auto runs)" if own["requested"] == "auto" else ""
        lines.append(f"arm {name}{chosen}" + (": " + ", ".join(shown) if shown else ""))
    if len(report.arms) > 1:
        routes = ["route"] if len({one["route"] for one in settings}) > 1 else []
        words = [_words(key) for key in differing]
        lines.append("arms differ in: " + (", ".join(routes + words) or "nothing"))
    shared = [f"{_words(key)} {values[key][0]}" for key in keys if key not in own_keys]
    return [*lines, *(["the same where it applies: " + ", ".join(shared)] if shared else [])]


def format_findings(report: BenchReport, best: Best | None) -> list[str]:
    """What to take home, a sentence each."""
    if not report.measured:
        return ["nothing was measured"]
    names = arm_labels(report)
    lines: list[str] = []
    if not report.headline:
        lines.append("Every plain answer ends in a loop: no headline figure can be given.")
    for words, verdict in VERDICTS.items():
        found = [one for one in report.comparisons if one.verdict == verdict]
        if found:
            first = names[found[0].first]
            lines.append(words.format(first) + ", ".join(names[one.second] for one in found) + ".")
    lines += [
        f"{names[one.second]} is faster with OTHER greedy ids: not the same work."
        for one in report.comparisons
        if one.flagged
    ]
    for name, arm in zip(names, report.arms, strict=True):
        for difference in arm.identity.differences:
            margin = "" if difference.margin is None else f"{difference.margin:.2g}"
            lines.append(
                f"{name}: {report.prompts[difference.prompt].name} leaves the plain ids at token "
                f"{difference.position}, where the plain one leads by {margin} nats"
            )
    if best is not None:
        equal = ", ".join(names[arm] for arm in best.as_good)
        lines.append(
            f"Best on this device: {names[best.arm]}"
            + (f"; not told apart from it: {equal}." if equal else "; every other is slower.")
        )
    return lines


def _short(commit: str | None) -> str:
    """The first digits, and whether files differ from it."""
    if commit is None:
        return "unknown"
    digits, plus, changes = commit.partition("+")
    return digits[:12] + plus + changes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _words(key: str) -> str:
    return key.replace("_", " ")
