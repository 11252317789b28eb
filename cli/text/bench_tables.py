"""The tables of a benchmark as plain strings, for the terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.bench.accept_profile import Rate
from ...core.bench.compare import Comparison, PromptRow
from ...core.bench.report import ArmReport, BenchReport
from ...core.bench.speed import Ratio, Spread
from ...core.stats import PHASES

DASH = "-"
BAR = 10
WIDE_COMPARISONS = 2
"""Up to so many comparisons the per-prompt table shows ranges beside the medians."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a title.

    words: columns that hold words and stand left, the others are numbers; folding: the one that
    may break into lines where the terminal is narrow; label_width: to which the first is folded;
    labels: so many columns in front say what a row is of.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: Sequence[int] = (0,)
    folding: int | None = None
    label_width: int | None = None
    labels: int = 1


def make_tables(report: BenchReport) -> list[Table]:
    """Every table that has something to show, in reading order."""
    if not report.measured:
        return []
    names = arm_labels(report)
    tables = [
        comparison_table(report, names),
        speed_table(report, names),
        rounds_table(report, names),
        profile_table(report, names),
        context_table(report, names),
        prompt_table(report),
        phase_table(report, names),
        width_table(report),
    ]
    return [table for table in tables if table.rows]


def arm_labels(report: BenchReport) -> list[str]:
    """`A dflash2`, `B mtp k=3`, ..."""
    return [f"{letter(index)} {arm.arm.name}" for index, arm in enumerate(report.arms)]


def letter(index: int) -> str:
    """A .. Z, then A1 ..: how an arm is called."""
    turn, place = divmod(index, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")


def comparison_table(report: BenchReport, names: Sequence[str]) -> Table:
    """Each arm against the first, by ratios of neighbours."""
    rows = [
        [
            names[one.second],
            _ratio(one.end_to_end),
            _interval(one.end_to_end),
            _ratio(one.decode),
            f"{one.break_even.time_ratio:.2f}" if one.break_even else DASH,
            f"{one.break_even.tokens_ratio:.2f}" if one.break_even else DASH,
            verdict(one),
        ]
        for one in report.comparisons
    ]
    columns = (
        "arm", "end to\nend", "99 %\ninterval", "decode", "pass\ntime", "pass\ntokens", "verdict",
    )  # fmt: skip
    counts = [one.end_to_end.spread.count for one in report.comparisons if one.end_to_end]
    first = names[report.comparisons[0].first] if rows else ""
    title = f"Against {first}: ratios over {max(counts, default=0)} pairs of neighbours"
    note = (
        "The verdict is on end-to-end time. Decoding gains exactly where a pass yields more "
        "(pass tokens) than it costs more (pass time)."
    )
    return Table(title, columns, rows, note, (0, 6), 6)


def verdict(one: Comparison) -> str:
    """In words; a speed-up beside other ids says so."""
    return f"{one.verdict}, BUT OTHER IDS" if one.flagged else one.verdict


def speed_table(report: BenchReport, names: Sequence[str]) -> Table:
    """Speed of each arm over the prompts that count."""
    rows = [
        [
            name,
            _spread(arm.end_to_end),
            _spread(arm.decode),
            _ms(arm.ttft_sec.median if arm.ttft_sec else None),
            _ms(arm.pass_sec),
            f"{arm.peak_memory_bytes / 1e9:.2f}",
            _ids(arm),
        ]
        for name, arm in zip(names, report.arms, strict=True)
    ]
    columns = (
        "arm", "end to end\ntok/s", "decode\ntok/s", "first\nms", "pass\nms", "peak\nGB",
        "plain\nids",
    )  # fmt: skip
    note = (
        "Median and range over answers. pass: one round, or one plain step. plain ids: on how "
        "many prompts they equal those of plain greedy decoding: "
    ) + identity_note(report)
    return Table("Speed", columns, rows, note, (0, 6), 6)


def identity_note(report: BenchReport) -> str:
    """`identical here` of the arms whose ids were, `not verified on this device` of the others."""
    said: dict[str, list[str]] = {}
    for index, arm in enumerate(report.arms):
        said.setdefault(arm.identity.statement, []).append(letter(index))
    return "; ".join(f"{', '.join(arms)} {what}" for what, arms in said.items()) + "."


def rounds_table(report: BenchReport, names: Sequence[str]) -> Table:
    """Totals of the speculative rounds."""
    rows = []
    for name, arm in zip(names, report.arms, strict=True):
        found = arm.profile
        if found is None:
            rows.append([name, *[DASH] * 5, "1.00", DASH])
            continue
        counts = (found.rounds, found.drafted, found.accepted, found.discarded, found.emitted)
        rows.append(
            [
                name,
                *(f"{count:,}" for count in counts),
                f"{found.tokens_per_round:.2f}" if found.tokens_per_round else DASH,
                f"{found.accept_rate:.1%}" if found.accept_rate is not None else DASH,
            ]
        )
    columns = (
        "arm", "rounds", "drafted", "accep-\nted", "dis-\ncarded", "emitted", "tokens/\nround",
        "accept\nrate",
    )  # fmt: skip
    note = "tokens/round can be compared across block sizes, the accept rate cannot."
    return Table("Rounds", columns, rows, note)


def profile_table(report: BenchReport, names: Sequence[str]) -> Table:
    """Survival by draft position."""
    rows: list[list[str]] = []
    for name, arm in zip(names, report.arms, strict=True):
        if arm.profile is None:
            continue
        rates = zip(arm.profile.survival, arm.profile.conditional, strict=True)
        for index, (rate, after) in enumerate(rates):
            rows.append([name if index == 0 else "", str(index + 1), *_rate(rate, after)])
    columns = ("arm", "draft", "kept", "tried", "survival", "95 %", "condi-\ntional", "")
    note = (
        "survival: rounds that kept this draft; conditional: of those that kept all before it. "
        "Each prompt counts once."
    )
    return Table("Accept profile", columns, rows, note, (0, 7), labels=2)


def context_table(report: BenchReport, names: Sequence[str]) -> Table:
    """Tokens per round by context length, where contexts are long enough to tell."""
    rows = [
        [
            name if index == 0 else "",
            f"{row.start:,}" + (f"-{row.stop - 1:,}" if row.stop else " or more"),
            f"{row.rounds:,}",
            f"{row.tokens_per_round:.2f}",
        ]
        for name, arm in zip(names, report.arms, strict=True)
        for index, row in enumerate(arm.by_context)
    ]
    told = any(len(arm.by_context) > 1 for arm in report.arms)
    columns = ("arm", "context", "rounds", "tokens/\nround")
    return Table("Tokens per round by context length", columns, rows if told else [])


def prompt_table(report: BenchReport) -> Table:
    """End-to-end ratio of every prompt, loops marked."""
    wide = len(report.comparisons) <= WIDE_COMPARISONS
    lengths = _answer_lengths(report)
    rows = []
    for place, prompt in enumerate(report.measured):
        loops = " (loop)" if prompt in report.degenerate else ""
        ratios = [_prompt_ratio(one.rows[place], wide) for one in report.comparisons]
        name = report.prompts[prompt].name
        rows.append([name + loops, str(lengths.get(prompt, 0)), *ratios])
    losers = ", ".join(
        f"{letter(one.second)} {sum(row.loses for row in one.rows)} of {len(one.rows)}"
        for one in report.comparisons
    )
    heads = [f"{letter(one.second)} / {letter(one.first)}" for one in report.comparisons]
    note = f"End-to-end ratio; < marks a loser, slower at every repeat: {losers}."
    if report.degenerate:
        note += (
            f" (loop): {len(report.degenerate)} of {len(report.measured)} plain answers or prompts "
            "repeat themselves (four fifths of their runs of four tokens stood before); left out "
            "of the tables above."
        )
    columns = ("prompt", "tokens", *heads)
    return Table("Prompts", columns, rows if heads else [], note, folding=0)


def phase_table(report: BenchReport, names: Sequence[str]) -> Table:
    """Time of each phase, a pass."""
    phases = (*PHASES, "other")
    rows = [
        [name, *(_ms(arm.phases[phase]) for phase in phases), _ms(sum(arm.phases.values()))]
        for name, arm in zip(names, report.arms, strict=True)
        if arm.phases
    ]
    note = "From separate answers that wait for the device after each phase: no speed figure."
    return Table("Phases, ms a pass", ("arm", *phases, "sum"), rows, note)


def width_table(report: BenchReport) -> Table:
    """What a pass costs by its rows."""
    one = report.widths.get(1)
    rows = [
        [str(width), _ms(seconds), f"{seconds / one:.2f}" if one else DASH]
        for width, seconds in report.widths.items()
    ]
    return Table("Verify pass by rows", ("rows", "ms", "x one row"), rows, words=())


def _rate(rate: Rate | None, after: Rate | None) -> list[str]:
    if rate is None:
        return ["0", "0", DASH, DASH, DASH, ""]
    return [
        f"{rate.kept:,}",
        f"{rate.tried:,}",
        f"{rate.value:.1%}",
        f"{100 * rate.low:.0f}-{rate.high:.0%}",
        f"{after.value:.1%}" if after else DASH,
        "#" * round(rate.value * BAR),
    ]


def _prompt_ratio(row: PromptRow, wide: bool) -> str:
    found = row.end_to_end
    if found is None:
        return DASH
    mark = " <" if row.loses else "  "
    spread = f" ({found.low:.2f}-{found.high:.2f})" if wide and found.count > 1 else ""
    return f"{found.median:.2f}{spread}{mark}"


def _answer_lengths(report: BenchReport) -> dict[int, int]:
    """Tokens of each prompt's answer by the first arm."""
    return {sample.prompt: len(sample.token_ids) for sample in report.arms[0].samples}


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return DASH
    return f"{_short(spread.median)} ({_short(spread.low)}-{_short(spread.high)})"


def _short(value: float) -> str:
    """A decimal only where there are fewer than three digits before it."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _ratio(ratio: Ratio | None) -> str:
    return f"{ratio.spread.median:.3f}" if ratio else DASH


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.interval is None:
        return DASH
    return f"{ratio.interval[0]:.3f}-{ratio.interval[1]:.3f}"


def _ms(seconds: float | None) -> str:
    return DASH if seconds is None else _short(seconds * 1e3)


def _ids(arm: ArmReport) -> str:
    identity = arm.identity
    if identity.holds:
        return "all"
    wrong = len({one.prompt for one in identity.differences} | set(identity.unsteady))
    return f"{identity.prompts - wrong} of {identity.prompts}"
