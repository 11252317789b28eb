"""Options that say what is shown, and where."""

from __future__ import annotations

from typing import Annotated

import typer

from . import panels

JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="One JSON document on stdout instead of text.", rich_help_panel=panels.OUTPUT
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=panels.OUTPUT
    ),
]
HideReasoningOption = Annotated[
    bool,
    typer.Option(
        "--hide-reasoning/--show-reasoning",
        help="What the model thinks before it answers: not shown on a terminal, or dimmed. A pipe "
        "gets answers alone.",
        rich_help_panel=panels.OUTPUT,
    ),
]
StatsOption = Annotated[
    bool,
    typer.Option(
        "--stats", help="Also show acceptance by draft position.", rich_help_panel=panels.OUTPUT
    ),
]
ShowSettingsOption = Annotated[
    bool,
    typer.Option(
        "--show-settings",
        help="Show each setting, where it comes from, and stop.",
        rich_help_panel=panels.ADVANCED,
    ),
]
