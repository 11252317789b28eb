"""One diagnosis: findings on stdout, exit 1 on a failure; and with --probe what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from ...core.errors import OptionError
from ...core.options import LoadOptions
from ...doctor.probe.options import parse_contexts
from ..text.diagnosis import print_diagnosis
from ..text.footer import print_note
from ..text.progress import Progress
from ..text.terminal import print_document
from .exit_codes import CANCELLED_EXIT_CODE

if TYPE_CHECKING:
    from ...doctor.probe.report import ProbeReport


@dataclass(frozen=True)
class DoctorCall:
    """One call of `dflash doctor`.

    loading: what is diagnosed; its precision and kernels are those of the probe. contexts: tokens
    of context to measure at, as text. unused: options that were given and concern --probe alone.
    """

    loading: LoadOptions
    strict: bool = False
    verify: bool = False
    probe: bool = False
    contexts: str | None = None
    as_json: bool = False
    unused: tuple[str, ...] = ()


def run_doctor(call: DoctorCall) -> None:
    """Diagnose, perhaps measure, and show. Raises typer.Exit with the exit code where not 0."""
    if call.contexts is not None and not call.probe:
        raise OptionError("--probe-contexts is for --probe, which was not given")
    contexts = parse_contexts(call.contexts) if call.contexts is not None else None
    for option in () if call.as_json else call.unused:
        print_note(f"{option} is ignored: it concerns --probe, which was not given")
    progress = Progress(enabled=not call.as_json)
    loading = call.loading
    with progress:
        from ...doctor.checks.machine import read_machine
        from ...doctor.diagnose import diagnose
        from ...drafters.bundled.paths import TARGET

        if call.probe and loading.model is None:
            loading = replace(loading, model=TARGET)
        progress.say("reading data" if call.verify else "reading headers")
        diagnosis = diagnose(loading.model, loading.drafter, read_machine(), call.verify)
    healthy = diagnosis.is_healthy(call.strict)
    if not call.as_json:  # before a probe, which takes its time
        print_diagnosis(diagnosis)
    found: ProbeReport | None = None
    if call.probe and healthy:
        try:
            with progress:
                found = _probe(loading, contexts, progress)
        except KeyboardInterrupt:
            print_note("interrupted before the probe was done")
            raise typer.Exit(CANCELLED_EXIT_CODE) from None
    if call.as_json:
        print_document(diagnosis.to_dict(found))
    elif found is not None:
        from ..text.probe import print_probe

        print_probe(found)
    if call.probe and found is None:
        print_note("not probed: the findings above come first")
    if not healthy:
        raise typer.Exit(1)


def _probe(
    loading: LoadOptions, contexts: tuple[int, ...] | None, progress: Progress
) -> ProbeReport:
    """Load the pair as generate would, and measure."""
    from ...core.checkpoint.target_config import read_target_config
    from ...doctor.probe.measure import default_options, probe_pair
    from ...doctor.probe.options import require_positions
    from ...drafters.bundled.paths import ROOT, TARGET
    from ...drafters.locate import locate
    from ...drafters.pair import load_pair

    options = default_options()
    if contexts is not None:
        require_positions(max(contexts), read_target_config(locate(loading.model or TARGET)))
        options = replace(options, contexts=contexts)
    pair = load_pair(loading, progress.report(notes=True))
    is_bundled = pair.target.config.path.resolve() == ROOT / "target"
    return probe_pair(pair, bundled_target=is_bundled, options=options, say=progress.say)
