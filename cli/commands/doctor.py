"""`dflash doctor`: options -> one diagnosis -> findings on stdout, exit 1 on a failure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.errors import OptionError
from ...core.options import DEFAULT_KERNELS, parse_kernels
from ...doctor.probe.options import parse_contexts
from ..options.shared import DrafterBitsOption, DrafterOption, DtypeOption, KernelsOption
from ..text.diagnosis import print_diagnosis
from ..text.footer import print_note
from ..text.progress import Progress
from .generate import CANCELLED_EXIT_CODE

if TYPE_CHECKING:
    from ...doctor.probe.report import ProbeReport


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Target, or a drafter alone: a directory or a hub id, of which only headers are "
            "fetched. Omitted: only the machine is checked, or with --probe the bundled pair.",
        ),
    ] = None,
    drafter: DrafterOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read data too: hash what the hub's cache knows the hash of, and the slab.",
        ),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Load the model and measure on this device: whether rows of a pass are the same "
            "bits, what passes and drafts cost, the best block. Stored for later starts.",
        ),
    ] = False,
    probe_contexts: Annotated[
        str | None,
        typer.Option(
            "--probe-contexts",
            metavar="TOKENS,...",
            help="Tokens of context to measure at. Default: 64,2000,8000, on a CPU 64.",
            show_default=False,
        ),
    ] = None,
    drafter_bits: DrafterBitsOption = None,
    dtype: DtypeOption = "auto",
    kernels: KernelsOption = DEFAULT_KERNELS,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document (dflash.doctor/1) on stdout.")
    ] = False,
) -> None:
    """Check whether a target and a drafter fit, without opening their weights.

    Reads config.json, safetensors headers and tokenizer files; with --probe alone the weights
    too, as --drafter-bits, --dtype and --kernels say. Exit codes: 0 no failure, 1 failures (with
    --strict also warnings), 2 usage.
    """
    if probe_contexts is not None and not probe:
        raise OptionError("--probe-contexts is for --probe, which was not given")
    contexts = parse_contexts(probe_contexts) if probe_contexts is not None else None
    if probe:
        parse_kernels(kernels)
    progress = Progress(enabled=not as_json)
    with progress:
        from ...doctor.checks.machine import read_machine
        from ...doctor.diagnose import diagnose
        from ...drafters.bundled.paths import TARGET

        model = TARGET if probe and model is None else model
        progress.say("reading data" if verify else "reading headers")
        diagnosis = diagnose(model, drafter, read_machine(), verify)
    healthy = diagnosis.is_healthy(strict)
    if not as_json:  # before a probe, which takes its time
        print_diagnosis(diagnosis)
    found: ProbeReport | None = None
    if probe and model is not None and healthy:
        try:
            with progress:
                found = _probe(model, drafter, drafter_bits, dtype, kernels, contexts, progress)
        except KeyboardInterrupt:
            print_note("interrupted before the probe was done")
            raise typer.Exit(CANCELLED_EXIT_CODE) from None
    if as_json:
        print(json.dumps(diagnosis.to_dict(found), ensure_ascii=False))
    elif found is not None:
        from ..text.probe import print_probe

        print_probe(found)
    if probe and found is None:
        print_note("not probed: the findings above come first")
    if not healthy:
        raise typer.Exit(1)


def _probe(
    model: str,
    drafter: str | None,
    drafter_bits: int | None,
    dtype: str,
    kernels: str,
    contexts: tuple[int, ...] | None,
    progress: Progress,
) -> ProbeReport:
    """Load the pair as generate would, and measure."""
    from dataclasses import replace

    from ...core.checkpoint.target_config import read_target_config
    from ...doctor.probe.measure import default_options, probe_pair
    from ...doctor.probe.options import require_positions
    from ...drafters.bundled.paths import ROOT
    from ...drafters.pair import load_pair, locate

    options = default_options()
    if contexts is not None:
        require_positions(max(contexts), read_target_config(locate(model)))
        options = replace(options, contexts=contexts)
    pair = load_pair(
        model,
        drafter,
        dtype=dtype,
        progress=progress.say,
        drafter_bits=drafter_bits,
        report=progress.report(notes=True),
        kernels=kernels,
        stored_probe=False,
        exact=False,
    )
    is_bundled = pair.target.config.path.resolve() == ROOT / "target"
    return probe_pair(pair, bundled_target=is_bundled, options=options, say=progress.say)
