"""`dflash doctor --probe`: what this device makes of a loaded model, measured.

Are rows of a pass the same bits, what do passes and drafts cost, how far are drafts kept; from
these the best block. The one path of the doctor that opens weights: nothing else imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from ...core.decode.drafter import Drafter
from ...core.decode.emit import Detokenizer
from ...core.device import on_cpu
from ...core.errors import ExactUnavailable
from ...core.exact.agreement import agree, agree_at_widths, agree_with_one_rows
from ...core.exact.exact_plan import ExactPlan
from ...core.exact.plan import PADDED_WIDTHS, ExactTarget, exact_base, find_plan
from ...core.options import MAX_DRAFT_TOKENS, GenerateOptions
from ...core.probe_store import ProbeKey, StoredProbe, conditions, probe_key, save_probe, today
from ...core.target.target import Target
from ...drafters.bench.prompts import collect_prompts
from ...drafters.pair import Pair
from ...drafters.stored_block import drafter_key
from .acceptance import AcceptCurve, Answers, Prompts, plain_answers
from .costs import ContextCosts, CostOptions, measure_costs, relative_costs
from .forecast import settle
from .options import CPU_OPTIONS, ProbeOptions
from .report import (
    DraftFinding,
    ExactFinding,
    ProbeReport,
    RowsFinding,
)

Say = Callable[[str], None]


def default_options() -> ProbeOptions:
    """The options for this device."""
    return CPU_OPTIONS if on_cpu() else ProbeOptions()


def probe_pair(
    pair: Pair,
    *,
    bundled_target: bool = False,
    options: ProbeOptions | None = None,
    say: Say = lambda message: None,
    store: bool = True,
) -> ProbeReport:
    """Probe what load_pair loaded, over the built-in prompts, and store what was found."""
    options = options or default_options()
    vocab = pair.target.config.vocab_size
    prompts = collect_prompts(
        pair.tokenizer, vocab, bundled_target=bundled_target, most=options.prompts
    )
    drafters = [one for one in (pair.drafter, pair.reserve) if one is not None]
    report = probe(
        pair.target,
        drafters,
        [prompt.ids for prompt in prompts],
        lambda: pair.tokenizer.detokenizer,
        options,
        say,
    )
    if not drafters:
        report = replace(report, notes=(f"no drafter to measure: {pair.route.reason}",))
    return store_report(report, pair.target, drafters) if store else report


def probe(
    target: Target,
    drafters: Sequence[Drafter],
    prompts: Prompts,
    detokenizer: Callable[[], Detokenizer],
    options: ProbeOptions | None = None,
    say: Say = lambda message: None,
) -> ProbeReport:
    """Measure a loaded target and drafters bound to it; prints and stores nothing.

    prompts: ids of what is answered to see how far drafts are kept; not used without drafters.
    """
    options = options or default_options()
    rows, problem = compare_rows(target, options, say)
    costs, largest = [], {one.name: (one, largest_block(one, options)) for one in drafters}
    for context in options.contexts:
        say(f"timing passes and drafts at {context:,} tokens of context")
        timing = CostOptions(options.widths, options.repeats)
        costs.append(measure_costs(target, context, largest, timing))
    say("looking for a way that is exact")
    exact = find_exact(target, options)
    drafts: list[DraftFinding] = []
    if drafters:
        say("plain answers")
        answers = plain_answers(target, prompts, detokenizer, options.max_tokens)
        drafts = [find_draft(one, most, answers, costs, say) for one, most in largest.values()]
    return ProbeReport(today(), _subject(target), rows, problem, exact, tuple(costs), tuple(drafts))


def find_draft(
    drafter: Drafter, most: int, answers: Answers, costs: Sequence[ContextCosts], say: Say
) -> DraftFinding:
    """Acceptance at the largest block and at the best one, and the forecast of every block."""

    def measure(block: int) -> AcceptCurve:
        say(f"answers with {drafter.name}, block {block}")
        return answers.profile(drafter, block)

    profiles, forecasts, best = settle(costs, drafter.name, most, measure)
    trained, bits = drafter.block(GenerateOptions()).trained, getattr(drafter, "bits", None)
    return DraftFinding(drafter.name, bits, trained, profiles, tuple(forecasts), best)


def largest_block(drafter: Drafter, options: ProbeOptions) -> int:
    """The trained block, or the longest chain of an MTP head; at most the widest pass timed."""
    trained = drafter.block(GenerateOptions()).trained
    return min(trained or MAX_DRAFT_TOKENS + 1, max(options.widths))


def compare_rows(
    target: Target, options: ProbeOptions, say: Say = lambda message: None
) -> tuple[tuple[RowsFinding, ...], str]:
    """(findings, why there are not more): rows as they are, and where some differ, with a fixed
    number of keys and padded."""
    found: list[RowsFinding] = []
    try:
        for context in options.contexts:
            for one in _rows_as_they_are(target, context, options):
                found.append(one)
                width = one.agreement.width
                say(f"comparing rows at {context:,} tokens of context, width {width}: {one.way}")
        if target.independent_rows is None and not all(one.agreement.holds for one in found):
            for context in options.contexts:
                say(f"comparing rows at {context:,} tokens of context, padded")
                found += _rows_made_exact(target, context, options)
    except ExactUnavailable as error:  # the model's answers are too uniform
        return tuple(found), str(error)
    return tuple(found), ""


def find_exact(target: Target, options: ProbeOptions) -> ExactFinding:
    """The plan of `--exact` here, and what it costs."""
    target = exact_base(target)
    try:
        plan = find_plan(target)
    except ExactUnavailable as error:
        return ExactFinding(problem=str(error))
    if not plan.has_fixed_keys:
        free = tuple((context, 1.0) for context in options.contexts)
        return ExactFinding(plan, cost=free, plain_cost=free)
    exact, widths = ExactTarget(target, plan), (1, plan.width)
    costs = [
        (context, relative_costs(exact, target, context, widths, options.repeats))
        for context in options.contexts
    ]
    return ExactFinding(
        plan,
        cost=tuple((context, ratios[plan.width]) for context, ratios in costs),
        plain_cost=tuple((context, ratios[1]) for context, ratios in costs),
    )


def store_report(report: ProbeReport, target: Target, drafters: Sequence[Drafter]) -> ProbeReport:
    """The report with where it was stored; a disk that takes nothing is a note."""
    key = probe_key(target)
    if key is None:
        return replace(report, notes=(*report.notes, "not stored: the model is in no directory"))
    records: list[tuple[ProbeKey, StoredProbe]] = []
    plan, details = report.exact.plan, report.to_dict()
    unplanned = StoredProbe(report.date, details=details)
    records.append((key, unplanned if plan is None else plan.to_stored(details)))
    for one, found in zip(drafters, report.drafts, strict=True):
        known = drafter_key(key, one)
        if known is not None:
            records.append((known, StoredProbe(report.date, block=found.best, details=details)))
    try:
        files = tuple(str(save_probe(*record)) for record in records)
    except OSError as error:
        return replace(report, notes=(*report.notes, f"could not be stored: {error}"))
    return replace(report, stored=files)


def _rows_as_they_are(target: Target, context: int, options: ProbeOptions) -> Iterator[RowsFinding]:
    widths = [width for width in options.widths if width > 1]
    for found in agree_with_one_rows(target, widths, context, options.agreement_tokens):
        yield RowsFinding("one row", "as they are", found)
    for found in agree_at_widths(target, widths, context, options.agreement_tokens):
        yield RowsFinding("same width", "as they are", found)


def _rows_made_exact(target: Target, context: int, options: ProbeOptions) -> Iterator[RowsFinding]:
    widths = [width for width in sorted(PADDED_WIDTHS) if width in options.widths]
    fixed = ExactTarget(target, ExactPlan(max(widths), pads=False, fixes_keys=True))
    for found in agree_with_one_rows(fixed, widths, context, options.agreement_tokens):
        yield RowsFinding("one row", fixed.plan.way, found)
    for width in widths:
        padded = ExactTarget(target, ExactPlan(width, pads=True))
        found = agree(padded, width, context, options.agreement_tokens)
        yield RowsFinding("same width", padded.plan.way, found)


def _subject(target: Target) -> Mapping[str, str]:
    """The key where there is one; else what is known of a target of no directory."""
    key = probe_key(target)
    if key is not None:
        return asdict(key)
    return {"model": str(target.config.path), **conditions(target)}
