"""`dflash doctor`: options -> one diagnosis -> findings on stdout, exit 1 on a failure."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .findings import print_diagnosis
from .params import DrafterOption
from .progress import Progress


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Target, or a drafter alone: a directory or a hub id, of which only headers are "
            "fetched. Omitted: only the machine is checked.",
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
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document (dflash.doctor/1) on stdout.")
    ] = False,
) -> None:
    """Check whether a target and a drafter fit, without opening their weights.

    Reads config.json, safetensors headers and tokenizer files. Exit codes: 0 no failure,
    1 failures (with --strict also warnings), 2 usage.
    """
    progress = Progress(enabled=not as_json)
    with progress:
        from ..doctor.diagnose import diagnose
        from ..doctor.machine import read_machine

        progress.say("reading data" if verify else "reading headers")
        diagnosis = diagnose(model, drafter, read_machine(), verify)
    if as_json:
        print(json.dumps(diagnosis.to_dict(), ensure_ascii=False))
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_healthy(strict):
        raise typer.Exit(1)
