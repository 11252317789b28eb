"""Options that say what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PromptArgument = Annotated[
    str | None,
    typer.Argument(help="Text to answer; - reads stdin. Omitted: a pipe, or a built-in one."),
]
PromptFileOption = Annotated[
    Path | None,
    typer.Option(
        "--prompt-file",
        "-f",
        metavar="FILE",
        help="Read the prompt from a UTF-8 file.",
        show_default=False,
    ),
]
RequestsOption = Annotated[
    str | None,
    typer.Option(
        "--requests",
        metavar="FILE|-",
        help="Answer a JSON object a line (prompt or messages, max_tokens, speculation, ...), one "
        "JSON result a line, in order; a bad line is answered by an error. Exit 1 if one was.",
        show_default=False,
    ),
]
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="A chat turn through the tokenizer's template, or the text as it stands. "
        "Default: chat where there is a template.",
        show_default=False,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System message (chat only)."),
]
ReasoningOption = Annotated[
    str | None,
    typer.Option(
        "--reasoning",
        metavar="on|off|low|medium|high|xhigh",
        help="How much to reason before the answer, through the variable that the model's chat "
        "template has for it; an error where it has none. Omitted: the template's default.",
        show_default=False,
    ),
]
