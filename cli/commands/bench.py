"""`dflash bench`: options -> arms and prompts -> one interleaved run -> tables or a document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import __version__
from ...core.bench.options import BenchOptions
from ...core.errors import OptionError
from ...core.options import DEFAULT_KERNELS, SPECULATION_VALUES
from ..options.shared import (
    DrafterBitsOption,
    DrafterOption,
    DtypeOption,
    ExactOption,
    KernelsOption,
    ModelOption,
    MtpOption,
    StoredProbeOption,
)
from ..text.footer import print_note
from ..text.progress import Progress

if TYPE_CHECKING:
    from ...core.bench.runner import Bench, BenchProgress
    from ...drafters.bench.arm_specs import ArmSpec
    from ...drafters.bench.arms import BenchSetup

CANCELLED_EXIT_CODE = 130


def bench(
    model: ModelOption = None,
    drafter: DrafterOption = None,
    drafter_bits: DrafterBitsOption = None,
    mtp: MtpOption = None,
    ab: Annotated[
        str | None,
        typer.Option(
            "--ab",
            metavar="|".join(SPECULATION_VALUES),
            help="Two arms: A is what auto would run, B this. Default, where no arm is given: "
            "none.",
            show_default=False,
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="NAME:OPTIONS",
            help="An arm of your own, may be repeated: auto, dflash, mtp or none, and after the "
            "colon block-size=5, drafter=DIR, drafter-bits=8, draft-tokens=3, mtp=DIR, "
            "mtp-hidden=pre, gate=on, joined by commas.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="OPTION=RANGE",
            help="block-size=2..8 (DFlash) or draft-tokens=1..6 (MTP): an arm a value beside "
            "plain decoding, and the best of them.",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Your prompts: text, one a line; or .jsonl with text, user, messages or "
            "prompt_ids, one object a line.",
            show_default=False,
        ),
    ] = None,
    prompt_set: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-set",
            metavar="NAME",
            help="chat, code, prose, edit, or a kind of the bundled pair's prompts (hand, "
            "hand-chat, held-code, held-chat); may be repeated. Default: all of these four.",
        ),
    ] = None,
    max_prompts: Annotated[
        int | None,
        typer.Option(
            "--max-prompts",
            min=1,
            help=f"Most prompts. Default: {BenchOptions.max_prompts} from the sets, by turns; all "
            "of a file.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="Most tokens of an answer.")
    ] = BenchOptions.max_tokens,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Times that every arm answers every prompt.")
    ] = BenchOptions.repeats,
    dtype: DtypeOption = "auto",
    kernels: KernelsOption = DEFAULT_KERNELS,
    stored_probe: StoredProbeOption = True,
    exact: ExactOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="One CSV row a measured answer on stdout.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The tables as Markdown on stdout.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.svg|png",
            help="Also draw the accept profiles with their intervals (needs the extra `plot`).",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")
    ] = False,
) -> None:
    """Compare ways to decode: same prompts, same run, arms in alternating order.

    Tables go to stdout, progress to stderr. Ctrl-C keeps what was measured.
    """
    from ...core.bench.runner import Bench
    from ...drafters.bench.arms import load_arms

    if prompts is not None and prompt_set:
        raise OptionError("give --prompts or --prompt-set, not both")
    specs = _specs(ab, arm, sweep)
    output = _output(as_json, as_csv, markdown)
    if plot is not None:
        from ..export.bench_plot import check_plot

        check_plot(plot)
    options = BenchOptions(max_tokens=max_tokens, repeats=repeats)
    progress = Progress(enabled=not quiet)
    with progress:
        report = progress.report(notes=not quiet)
        setup = load_arms(
            specs, model, drafter, mtp, drafter_bits, dtype, kernels, progress.say, report,
            stored_probe, exact,
        )  # fmt: skip
        progress.stop()
        for note in () if quiet else setup.target.target.config.repairs.notes:
            print_note(note)
        running = Bench(
            setup.target.target,
            lambda: setup.target.tokenizer.detokenizer,
            setup.arms,
            _prompts(setup, prompts, prompt_set, max_prompts, model),
            options,
        )
        progress.say("hashing the files of the models")
        context = _context(setup, running, dtype)
        cancelled = _run(running, progress)
    _show(running, context, output, plot, quiet=quiet, sweep=sweep is not None)
    if cancelled:
        raise typer.Exit(CANCELLED_EXIT_CODE)


def _specs(ab: str | None, arm: list[str] | None, sweep: str | None) -> list[ArmSpec]:
    from ...drafters.bench.arm_specs import ab_specs, parse_arm, parse_sweep

    if sum(bool(given) for given in (ab, arm, sweep)) > 1:
        raise OptionError("give --ab, --arm or --sweep, not several of them")
    if sweep:
        return parse_sweep(sweep)
    return [parse_arm(text) for text in arm] if arm else ab_specs(ab or "none")


def _output(as_json: bool, as_csv: bool, markdown: bool) -> str:
    chosen = [
        name
        for name, given in (("json", as_json), ("csv", as_csv), ("markdown", markdown))
        if given
    ]
    if len(chosen) > 1:
        raise OptionError(f"--{chosen[0]} and --{chosen[1]} both write to stdout; give one")
    return chosen[0] if chosen else "tables"


def _prompts(
    setup: BenchSetup,
    file: Path | None,
    sets: list[str] | None,
    most: int | None,
    model: str | None,
) -> Any:
    from ...drafters.bench.prompts import collect_prompts
    from ...drafters.bundled.paths import TARGET

    return collect_prompts(
        setup.target.tokenizer,
        setup.target.target.config.vocab_size,
        file=file,
        sets=sets or (),
        bundled_target=model in (None, TARGET),
        most=most or (BenchOptions.max_prompts if file is None else None),
    )


def _context(setup: BenchSetup, running: Bench, dtype: str) -> dict[str, Any]:
    """What a reader needs to place the figures: the head of the JSON document."""
    from ...core.bench import environment as environment
    from ...core.bench.speed import CONFIDENCE, RESAMPLES, SEED

    options = running.options
    compute = str(setup.target.target.compute_dtype).removeprefix("mlx.core.")
    return {
        "device": environment.describe_device(),
        "versions": environment.describe_versions(__version__),
        "commit": environment.suite_commit(),
        "settings": {
            "target": str(setup.target.target.config.path),
            "notes": list(setup.target.target.config.repairs.notes),
            "dtype": dtype,
            "compute_dtype": compute,
            "exact": setup.promise.plan.to_dict() if setup.promise.plan else None,
            "max_tokens": options.max_tokens,
            "repeats": options.repeats,
            "warmup_tokens": options.warmup_tokens,
            "prefill_step_size": options.prefill_step_size,
            "batch": 1,
            "ignore_eos": False,
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "seed": SEED,
        },
        "models": {str(place): environment.hash_directory(place) for place in setup.directories},
    }


def _run(running: Bench, progress: Progress) -> bool:
    """True where Ctrl-C ended it."""
    try:
        for state in running.run():
            progress.say(_describe(running, state))
    except KeyboardInterrupt:
        return True
    return False


def _describe(running: Bench, state: BenchProgress) -> str:
    step = state.step
    if step is None:
        return "done"
    who = "" if step.arm is None else f" {running.arms[step.arm].name}"
    where = running.prompts[step.prompt].name
    left = "" if state.left_sec is None else f", about {_minutes(state.left_sec)} left"
    return f"{step.work}{who} on {where}: {state.done + 1} of {state.total}{left}"


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d} min" if whole >= 60 else f"{whole} s"


def _show(
    running: Bench,
    context: dict[str, Any],
    output: str,
    plot: Path | None,
    *,
    quiet: bool,
    sweep: bool,
) -> None:
    from ...core.bench.report import make_report
    from ...core.bench.sweep import find_best
    from ..export import bench_documents as bench_export
    from ..text import bench as bench_render

    report = make_report(running)
    best = find_best(report) if sweep else None
    if not report.measured and not quiet:
        print_note("interrupted before every arm had answered one prompt: nothing to compare")
    writers: dict[str, Callable[[], None]] = {
        "json": lambda: bench_export.print_json(context, report, best),
        "csv": lambda: bench_export.print_csv(report),
        "markdown": lambda: bench_export.print_markdown(context, report, best),
        "tables": lambda: bench_render.print_report(context, report, best),
    }
    writers[output]()
    if plot is not None and report.measured:
        from ..export.bench_plot import draw_profiles

        draw_profiles(report, plot)
        if not quiet:
            print_note(f"wrote {plot}")
