"""Options of `dflash doctor` alone."""

from __future__ import annotations

from typing import Annotated

import typer

from . import panels

DiagnosedArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="Target, or a drafter alone: a directory or a hub id, of which only headers are "
        "fetched. Omitted: only the machine is checked, or with --probe the bundled pair.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with 1 on warnings about the target or the drafter too.",
        rich_help_panel=panels.OUTPUT,
    ),
]
VerifyDataOption = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Read data too: hash what the hub's cache knows the hash of, and the slab.",
        rich_help_panel=panels.MEASURING,
    ),
]
ProbeOption = Annotated[
    bool,
    typer.Option(
        "--probe",
        help="Load the model and measure on this device: whether rows of a pass are the same "
        "bits, what passes and drafts cost, the best block. Stored for later starts.",
        rich_help_panel=panels.MEASURING,
    ),
]
ProbeContextsOption = Annotated[
    str | None,
    typer.Option(
        "--probe-contexts",
        metavar="TOKENS,...",
        help="Tokens of context to measure at. Default: 64,2000,8000, on a CPU 64.",
        show_default=False,
        rich_help_panel=panels.MEASURING,
    ),
]
ListProbesOption = Annotated[
    bool,
    typer.Option(
        "--list-probes",
        help="List the stored probes, and do nothing else.",
        rich_help_panel=panels.MEASURING,
    ),
]
ClearProbesOption = Annotated[
    bool,
    typer.Option(
        "--clear-probes",
        help="Remove the stored probes, and do nothing else.",
        rich_help_panel=panels.MEASURING,
    ),
]
DiagnosisJsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON document (dflash.doctor/1) on stdout.",
        rich_help_panel=panels.OUTPUT,
    ),
]
