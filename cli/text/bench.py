"""A benchmark on the terminal: what was run, the tables, and what they say. Stdout only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ...core.bench.report import BenchReport
from ...core.bench.sweep import Best
from ...core.exact.exact_plan import ExactPlan
from ...drafters.bench.prompts import kinds_of
from .bench_tables import Table, arm_labels, make_tables

NAMED = ("requested", "route")
"""Settings that an arm's name already tells."""
VERDICTS = {
    "Faster than {} (99 %): ": "faster",
    "Slower than {} (99 %): ": "slower",
    "No difference to {} (99 %): ": "no difference",
    "Too few pairs for a verdict against {} (8 needed): ": "too few pairs",
}


def print_report(context: Mapping[str, Any], report: BenchReport, best: Best | None) -> None:
    """Everything, for people."""
    console = Console(highlight=False)
    for line in format_head(context, report):
        console.print(escape(line))
    for table in make_tables(report):
        console.print(rich_table(table))
        console.print(f"[dim]{escape(table.note)}[/dim]\n" if table.note else "")
    for line in format_findings(report, best):
        console.print(escape(line))


def rich_table(table: Table) -> RichTable:
    """Numbers are never cut or broken: one column of words folds where the terminal is narrow."""
    made = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), show_edge=False, pad_edge=False,
    )  # fmt: skip
    for index, column in enumerate(table.columns):
        made.add_column(
            column,
            justify="left" if index in table.words else "right",
            overflow="fold",
            no_wrap=index != table.folding,
        )
    for row in table.rows:
        made.add_row(*(escape(cell) for cell in row))
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
        + f"), at most {settings['max_tokens']} tokens, {settings['repeats']} repeats, batch 1, "
        "warm-up discarded",
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


def _words(key: str) -> str:
    return key.replace("_", " ")
