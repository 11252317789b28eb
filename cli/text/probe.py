"""A probe on the terminal: are rows the same bits, what they cost, and the block to use."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.exact.agreement import Agreement
from ...core.exact.exact_plan import PassWay
from ...doctor.probe.costs import ContextCosts
from ...doctor.probe.report import DraftFinding, ProbeReport, Way
from .bench import print_tables
from .bench_tables import DASH, Table
from .terminal import styled, text_console


def print_probe(report: ProbeReport) -> None:
    """Write everything to stdout."""
    console = text_console()
    console.print(styled(console, format_subject(report), "bold"), soft_wrap=True)
    print_tables(console, tables(report))
    for line in verdicts(report):
        console.print(styled(console, line))
    for place in report.stored:
        console.print(styled(console, f"stored: {place}"), soft_wrap=True)


def format_subject(report: ProbeReport) -> str:
    """What was measured, and on what."""
    known = report.subject
    parts = [known["dtype"], f"{known['kernels']} kernels"]
    parts += [f"{name} {known[key]}" for name, key in VERSIONS]
    return f"probe on {known['device']}, {', '.join(parts)}, {report.date}"


VERSIONS = (("mlx", "mlx"), ("mlx-lm", "mlx_lm"))


def tables(report: ProbeReport) -> Iterator[Table]:
    """Rows by context, passes, and every drafter by context."""
    for context in dict.fromkeys(row.agreement.context for row in report.rows):
        yield rows_table(report, context)
    if report.costs:
        yield cost_table(report.costs)
    for draft in report.drafts:
        for costs in report.costs:
            yield draft_table(draft, costs)


def rows_table(report: ProbeReport, context: int) -> Table:
    """A line a width: how many rows are equal to what, and the worst that was seen."""
    found: dict[tuple[Way, PassWay], dict[int, Agreement]] = {}
    for row in report.rows:
        if row.agreement.context == context:
            found.setdefault((row.way, row.plan), {})[row.agreement.width] = row.agreement
    columns = {key: name for key, name in COLUMNS.items() if key in found}
    lines = []
    for width in sorted({width for group in found.values() for width in group}):
        plain = [found[key][width] for key in UNPADDED if width in found.get(key, {})]
        lines.append(
            [
                str(width),
                *(equal_rows(found[key].get(width)) for key in columns),
                f"{max((one.largest_difference for one in plain), default=0):.2g}",
                str(sum(one.flips for one in plain)),
                f"{min((one.smallest_margin for one in plain), default=0):.2g}",
            ]
        )
    return Table(
        f"rows of a pass with equal bits, {context:,} tokens of context",
        ["rows", *columns.values(), "difference", "flips", "margin"],
        lines,
        NOTE + (MADE_EXACT if len(columns) > len(UNPADDED) else ""),
        words=(),
    )


COLUMNS: dict[tuple[Way, PassWay], str] = {
    ("one row", "as they are"): "as 1 row",
    ("same width", "as they are"): "same width",
    ("one row", "fixed keys"): "fixed keys",
    ("same width", "padded"): "padded",
}
UNPADDED = tuple(key for key in COLUMNS if key[1] == "as they are")


NOTE = (
    "as 1 row: against passes of one row; same width: at other places in the block, other offsets "
    "and beside other rows; difference of a logit, flips of the best one and its smallest margin: "
    "of passes as they are"
)
MADE_EXACT = (
    "; fixed keys: as 1 row, attention over a fixed number of keys; padded: same width, every pass "
    "padded to it; *: logits are equal, caches are not"
)


def equal_rows(one: Agreement | None) -> str:
    """`31 of 32`, with a star where all logits are equal and the caches are not."""
    if one is None:
        return DASH
    return f"{one.equal} of {one.rows}" + "*" * (one.equal == one.rows and not one.caches)


def cost_table(costs: tuple[ContextCosts, ...]) -> Table:
    """Milliseconds of a pass by rows and context, and over one row."""
    lines = [["plain", *(f"{one.plain_sec * 1e3:.2f}" for one in costs)]]
    for width in costs[0].pass_sec:
        cells = (f"{one.pass_sec[width] * 1e3:.2f} ({one.relative(width):.2f})" for one in costs)
        lines.append([str(width), *cells])
    return Table(
        "passes, ms",
        ["rows", *(f"{one.context:,} tokens" for one in costs)],
        lines,
        "by tokens of context, in brackets over one row; a pass has its choices read and half of "
        "its rows rolled back; plain: a step of plain decoding",
        words=(),
    )


def draft_table(draft: DraftFinding, costs: ContextCosts) -> Table:
    """A line a block: what a round costs and brings."""
    bits = f", {draft.bits} bits" if draft.bits else ""
    lines = []
    for one in draft.forecasts:
        if one.context == costs.context:
            draft_ms = costs.draft_sec[draft.name][one.block] * 1e3
            lines.append(
                [
                    f"{one.block}{' <' if one.block == draft.best else ''}",
                    f"{draft_ms:.2f}",
                    f"{one.round_sec * 1e3:.2f}",
                    f"{one.tokens_per_round:.2f}{'' if one.measured else ' ~'}",
                    f"{one.break_even:.2f}",
                    f"{one.tokens_per_second:.1f}",
                    f"{one.speedup:.2f}",
                ]
            )
    largest = max(draft.profiles)
    survival = draft.profiles[largest].survival
    return Table(
        f"{draft.name}{bits}, {costs.context:,} tokens of context",
        ["block", "draft ms", "round ms", "tokens/round", "break-even", "tok/s", "over plain"],
        lines,
        f"drafts kept at block {largest}, by position: "
        + " ".join(f"{rate:.0%}" for rate in survival)
        + "; ~ from answers at a larger block; <: the best; break-even: tokens a round must bring",
        words=(),
    )


def verdicts(report: ProbeReport) -> Iterator[str]:
    """What the figures say, a line each."""
    if report.rows_problem:
        yield f"rows were not compared: {report.rows_problem}"
    yield exact_line(report)
    for draft in report.drafts:
        yield draft_line(draft)
    yield from report.notes


def exact_line(report: ProbeReport) -> str:
    """What --exact would do here."""
    exact = report.exact
    if exact.plan is None:
        return f"--exact is refused here: {exact.problem}"
    if not exact.plan.has_fixed_keys:
        return f"--exact: {exact.plan.describe()}, at no cost"
    costs = "; ".join(
        f"at {context:,} tokens a pass of {exact.plan.width} rows costs {ratio:.2f} of one as it "
        f"is, a single row {plain:.2f}"
        for (context, ratio), (_, plain) in zip(exact.cost, exact.plain_cost, strict=True)
    )
    return f"--exact: {exact.plan.describe()}; {costs}"


def draft_line(draft: DraftFinding) -> str:
    """The best block, whether it pays, and whether the ids were right."""
    speedups = [one.speedup for one in draft.forecasts if one.block == draft.best]
    spread = " to ".join(f"{value:.2f}" for value in sorted({min(speedups), max(speedups)}))
    if draft.trained is None:
        what = f"{draft.name}: best with -k {draft.best - 1}"
    else:
        what = f"{draft.name}: best block {draft.best} of {draft.trained} trained"
    verdict = "" if draft.pays else ", so it does not pay here"
    same = draft.answers - draft.differing
    return (
        f"{what}, predicted at {spread} of plain speed{verdict}; ids of {same} of "
        f"{draft.answers} answers equal plain decoding's"
    )
