"""Options that say what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.errors import OptionError
from . import panels

PromptArgument = Annotated[
    str | None,
    typer.Argument(help="Text to answer; - reads stdin. Omitted: a pipe, or a built-in one."),
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="The prompt, for those who are used to giving it as an option.",
        show_default=False,
        rich_help_panel=panels.PROMPT,
    ),
]
PromptFileOption = Annotated[
    Path | None,
    typer.Option(
        "--prompt-file",
        "-f",
        metavar="FILE",
        help="Read the prompt from a UTF-8 file.",
        show_default=False,
        rich_help_panel=panels.PROMPT,
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
        rich_help_panel=panels.PROMPT,
    ),
]
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="A chat turn through the tokenizer's template, or the text as it stands. "
        "Default: chat where there is a template.",
        show_default=False,
        rich_help_panel=panels.PROMPT,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="System message (chat only).",
        rich_help_panel=panels.PROMPT,
    ),
]
ReasoningOption = Annotated[
    str | None,
    typer.Option(
        "--reasoning",
        metavar="LEVEL",
        help="How much the model reasons before it answers: on, off, low, medium, high or xhigh, "
        "through the variable that its chat template has for it; an error where it has none. "
        "Omitted: the template's default.",
        show_default=False,
        rich_help_panel=panels.PROMPT,
    ),
]


def one_prompt(argument: str | None, option: str | None) -> str | None:
    """PROMPT or --prompt; OptionError for both."""
    if argument is not None and option is not None:
        raise OptionError("give PROMPT or --prompt, not both")
    return argument if option is None else option
