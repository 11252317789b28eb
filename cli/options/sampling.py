"""Options that choose how tokens are drawn; greedy unless one of them says otherwise."""

from __future__ import annotations

from typing import Annotated

import typer

from ...core.errors import OptionError
from . import panels

TemperatureOption = Annotated[
    float,
    typer.Option(
        "--temperature",
        "--temp",
        "-t",
        metavar="T",
        help="0 is greedy, whatever generation_config.json says.",
        rich_help_panel=panels.SAMPLING,
    ),
]
TopKOption = Annotated[
    int, typer.Option("--top-k", metavar="K", help="0 is off.", rich_help_panel=panels.SAMPLING)
]
TopPOption = Annotated[
    float, typer.Option("--top-p", metavar="P", help="1 is off.", rich_help_panel=panels.SAMPLING)
]
MinPOption = Annotated[
    float, typer.Option("--min-p", metavar="P", help="0 is off.", rich_help_panel=panels.SAMPLING)
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Makes sampled output repeat exactly (the gate is off then).",
        show_default=False,
        rich_help_panel=panels.SAMPLING,
    ),
]
RepetitionPenaltyOption = Annotated[
    float,
    typer.Option(
        "--repetition-penalty", metavar="X", help="1 is off.", rich_help_panel=panels.SAMPLING
    ),
]
PresencePenaltyOption = Annotated[
    float,
    typer.Option(
        "--presence-penalty", metavar="X", help="0 is off.", rich_help_panel=panels.SAMPLING
    ),
]
FrequencyPenaltyOption = Annotated[
    float,
    typer.Option(
        "--frequency-penalty", metavar="X", help="0 is off.", rich_help_panel=panels.SAMPLING
    ),
]
PenaltyWindowOption = Annotated[
    int,
    typer.Option(
        "--penalty-window",
        metavar="N",
        help="Tokens back that the penalties look at.",
        rich_help_panel=panels.SAMPLING,
    ),
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID:X",
        help="Add X to the logit of token ID; may be repeated.",
        show_default=False,
        rich_help_panel=panels.SAMPLING,
    ),
]


def parse_logit_bias(pairs: list[str] | None) -> tuple[tuple[int, float], ...]:
    """`ID:X` texts as pairs; OptionError for anything else."""
    parsed = []
    for pair in pairs or ():
        token, separator, value = pair.partition(":")
        try:
            if not separator:
                raise ValueError
            parsed.append((int(token), float(value)))
        except ValueError:
            raise OptionError(
                f"--logit-bias '{pair}' is not of the form ID:X, e.g. 42:-5"
            ) from None
    return tuple(parsed)
