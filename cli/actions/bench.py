"""Arms and prompts, one interleaved run, and its tables or a document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ... import __version__
from ...core.bench.options import BenchOptions
from ...core.errors import OptionError
from ...core.options import LoadOptions
from ..text.footer import print_note
from ..text.progress import Progress
from .exit_codes import CANCELLED_EXIT_CODE

if TYPE_CHECKING:
    from ...core.bench.runner import Bench, BenchProgress
    from ...drafters.bench.arm_specs import ArmSpec
    from ...drafters.bench.arms import BenchSetup


@dataclass(frozen=True)
class ArmsAsked:
    """--ab, --arm and --sweep, of which one may be given."""

    ab: str | None = None
    arms: tuple[str, ...] = ()
    sweep: str | None = None

    def specs(self) -> list[ArmSpec]:
        """The arms; OptionError for several of the three, or a text that names no arm."""
        from ...drafters.bench.arm_specs import ab_specs, parse_arm, parse_sweep

        if sum(bool(given) for given in (self.ab, self.arms, self.sweep)) > 1:
            raise OptionError("give --ab, --arm or --sweep, not several of them")
        if self.sweep:
            return parse_sweep(self.sweep)
        return [parse_arm(text) for text in self.arms] or ab_specs(self.ab or "none")


@dataclass(frozen=True)
class PromptsAsked:
    """--prompts, --prompt-set and --max-prompts."""

    file: Path | None = None
    sets: tuple[str, ...] = ()
    most: int | None = None

    def __post_init__(self) -> None:
        if self.file is not None and self.sets:
            raise OptionError("give --prompts or --prompt-set, not both")


@dataclass(frozen=True)
class Written:
    """What is written to stdout, the picture beside it, and whether stderr is used."""

    as_json: bool = False
    as_csv: bool = False
    markdown: bool = False
    plot: Path | None = None
    quiet: bool = False

    @property
    def kind(self) -> str:
        """`tables`, or the one document that was asked for; OptionError for several."""
        given = {"json": self.as_json, "csv": self.as_csv, "markdown": self.markdown}
        chosen = [name for name, wanted in given.items() if wanted]
        if len(chosen) > 1:
            raise OptionError(f"--{chosen[0]} and --{chosen[1]} both write to stdout; give one")
        return chosen[0] if chosen else "tables"


@dataclass(frozen=True)
class BenchCall:
    """One call of `dflash bench`."""

    loading: LoadOptions
    options: BenchOptions
    arms: ArmsAsked
    prompts: PromptsAsked
    written: Written


def run_bench(call: BenchCall) -> None:
    """Load, measure, and show. Raises typer.Exit where Ctrl-C ended it."""
    from ...core.bench.runner import Bench
    from ...drafters.bench.arms import load_arms

    specs, quiet = call.arms.specs(), call.written.quiet
    call.written.kind  # noqa: B018 - two documents are refused before anything is loaded
    if call.written.plot is not None:
        from ..export.bench_plot import check_plot

        check_plot(call.written.plot)
    progress = Progress(enabled=not quiet)
    with progress:
        setup = load_arms(specs, call.loading, progress.report(notes=not quiet))
        progress.stop()
        for note in () if quiet else setup.target.notes:
            print_note(note)
        running = Bench(
            setup.target.target,
            lambda: setup.target.tokenizer.detokenizer,
            setup.arms,
            _prompts(setup, call),
            call.options,
        )
        progress.say("hashing the files of the models")
        context = _context(setup, running, call.loading.dtype)
        cancelled = _run(running, progress)
    _show(running, context, call)
    if cancelled:
        raise typer.Exit(CANCELLED_EXIT_CODE)


def _prompts(setup: BenchSetup, call: BenchCall) -> Any:
    from ...drafters.bench.prompts import collect_prompts
    from ...drafters.bundled.paths import TARGET

    asked = call.prompts
    return collect_prompts(
        setup.target.tokenizer,
        setup.target.target.config.vocab_size,
        file=asked.file,
        sets=asked.sets,
        bundled_target=call.loading.model in (None, TARGET),
        most=asked.most or (BenchOptions.max_prompts if asked.file is None else None),
    )


def _context(setup: BenchSetup, running: Bench, dtype: str) -> dict[str, Any]:
    """What a reader needs to place the figures: the head of the JSON document."""
    from ...core.bench import environment as environment
    from ...core.bench.speed import CONFIDENCE, RESAMPLES, SEED
    from ...core.device import dtype_text

    options = running.options
    return {
        "device": environment.describe_device(),
        "versions": environment.describe_versions(__version__),
        "commit": environment.suite_commit(),
        "settings": {
            "target": str(setup.target.target.config.path),
            "notes": list(setup.target.notes),
            "dtype": dtype,
            "compute_dtype": dtype_text(setup.target.target.compute_dtype),
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


def _show(running: Bench, context: dict[str, Any], call: BenchCall) -> None:
    from ...core.bench.report import make_report
    from ...core.bench.sweep import find_best
    from ..export import bench_documents
    from ..text import bench as bench_text

    plot, quiet = call.written.plot, call.written.quiet
    report = make_report(running)
    best = find_best(report) if call.arms.sweep else None
    if not report.measured and not quiet:
        print_note("interrupted before every arm had answered one prompt: nothing to compare")
    writers: dict[str, Callable[[], None]] = {
        "json": lambda: bench_documents.print_json(context, report, best),
        "csv": lambda: bench_documents.print_csv(report),
        "markdown": lambda: bench_documents.print_markdown(context, report, best),
        "tables": lambda: bench_text.print_report(context, report, best),
    }
    writers[call.written.kind]()
    if plot is not None and report.measured:
        from ..export.bench_plot import draw_profiles

        draw_profiles(report, plot)
        if not quiet:
            print_note(f"wrote {plot}")
