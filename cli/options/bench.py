"""Options of `dflash bench` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.bench.options import BenchOptions
from ...core.options import SPECULATION_VALUES
from . import panels

AbOption = Annotated[
    str | None,
    typer.Option(
        "--ab",
        metavar="|".join(SPECULATION_VALUES),
        help="Two arms: A is what auto would run, B this. Default, where no arm is given: none.",
        show_default=False,
        rich_help_panel=panels.MEASURING,
    ),
]
ArmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar="NAME:OPTIONS",
        help="An arm of your own, may be repeated: auto, dflash, mtp or none, and after the "
        "colon block-size=5, drafter=DIR, drafter-bits=8, draft-tokens=3, mtp=DIR, "
        "mtp-hidden=pre, gate=on, joined by commas.",
        rich_help_panel=panels.MEASURING,
    ),
]
SweepOption = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="OPTION=RANGE",
        help="block-size=2..8 (DFlash) or draft-tokens=1..6 (MTP): an arm a value beside "
        "plain decoding, and the best of them.",
        show_default=False,
        rich_help_panel=panels.MEASURING,
    ),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="Your prompts: text, one a line; or .jsonl with text, user, messages or "
        "prompt_ids, one object a line.",
        show_default=False,
        rich_help_panel=panels.PROMPT,
    ),
]
PromptSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt-set",
        metavar="NAME",
        help="chat, code, prose, edit, or a kind of the bundled pair's prompts (hand, "
        "hand-chat, held-code, held-chat); may be repeated. Default: all of these four.",
        rich_help_panel=panels.PROMPT,
    ),
]
MaxPromptsOption = Annotated[
    int | None,
    typer.Option(
        "--max-prompts",
        min=1,
        help=f"Most prompts. Default: {BenchOptions.max_prompts} from the sets, by turns; all "
        "of a file.",
        show_default=False,
        rich_help_panel=panels.PROMPT,
    ),
]
AnswerTokensOption = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        "-n",
        min=1,
        help="Most tokens of an answer.",
        rich_help_panel=panels.MEASURING,
    ),
]
RepeatsOption = Annotated[
    int,
    typer.Option(
        "--repeats",
        min=1,
        help="Times that every arm answers every prompt.",
        rich_help_panel=panels.MEASURING,
    ),
]
TablesJsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON document on stdout instead of tables.",
        rich_help_panel=panels.OUTPUT,
    ),
]
CsvOption = Annotated[
    bool,
    typer.Option(
        "--csv", help="One CSV row a measured answer on stdout.", rich_help_panel=panels.OUTPUT
    ),
]
MarkdownOption = Annotated[
    bool,
    typer.Option(
        "--markdown", help="The tables as Markdown on stdout.", rich_help_panel=panels.OUTPUT
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.svg|png",
        help="Also draw the accept profiles with their intervals (needs the extra `plot`).",
        show_default=False,
        rich_help_panel=panels.OUTPUT,
    ),
]
