"""Options that say how one request is decoded; defaults come from core/options.py."""

from __future__ import annotations

from typing import Annotated

import typer

from ...core.options import DEFAULT_DRAFT_TOKENS, MAX_DRAFT_TOKENS
from . import panels

MaxTokensOption = Annotated[
    int,
    typer.Option(
        "--max-tokens", "-n", min=1, help="Most tokens to emit.", rich_help_panel=panels.OUTPUT
    ),
]
BlockSizeOption = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        min=2,
        metavar="ROWS",
        help="Rows a verify pass: the last token and ROWS - 1 drafts. DFlash alone. Default: that "
        "of a stored probe, else min(trained, 7).",
        show_default=False,
        rich_help_panel=panels.SPECULATION,
    ),
]
DraftTokensOption = Annotated[
    int | None,
    typer.Option(
        "--draft-tokens",
        "-k",
        min=1,
        max=MAX_DRAFT_TOKENS,
        metavar="K",
        help="Drafts a round of the MTP head. Default: those of a stored probe, else "
        f"{DEFAULT_DRAFT_TOKENS}.",
        show_default=False,
        rich_help_panel=panels.SPECULATION,
    ),
]
GateOption = Annotated[
    bool,
    typer.Option(
        "--gate/--no-gate",
        help="Leave a drafter that costs more time than it saves, and try it again later.",
        rich_help_panel=panels.SPECULATION,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="End before this text; may be repeated.",
        rich_help_panel=panels.OUTPUT,
    ),
]
PrefillStepSizeOption = Annotated[
    int,
    typer.Option(
        "--prefill-step-size",
        min=1,
        help="Prompt tokens a prefill pass.",
        rich_help_panel=panels.ADVANCED,
    ),
]
ProfileOption = Annotated[
    bool,
    typer.Option(
        "--profile",
        help="Time each phase, waiting for the device; no tok/s then.",
        rich_help_panel=panels.ADVANCED,
    ),
]
