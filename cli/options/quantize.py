"""Options of `dflash quantize` alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...core.errors import OptionError

PackedArgument = Annotated[
    str | None,
    typer.Argument(metavar="DRAFTER", help="Directory, hub id, bundled:dflash or bundled:dflash2."),
]
BitsOption = Annotated[int, typer.Option("--bits", metavar="4|8", help="Bits a weight.")]
GroupSizeOption = Annotated[
    int,
    typer.Option("--group-size", metavar="32|64|128", help="Weights that share a scale."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Make DIR a drafter of its own: the slab as model.safetensors, and config.json. "
        "Omitted: beside the checkpoint, or in the user's cache directory.",
        show_default=False,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Make it anew.")]
CheckOption = Annotated[
    str | None,
    typer.Option(
        "--check",
        metavar="[PROMPTS]",
        help="Compare with the drafter as it is: error of each tensor, share of equal drafts, "
        "tokens/round. PROMPTS: a file of prompts, one a line, or .jsonl with text, user or "
        "prompt_ids. Omitted: some of the bundled ones.",
        show_default=False,
    ),
]
VerifySourceOption = Annotated[
    bool,
    typer.Option("--verify", help="Hash the source, although its size and time are as before."),
]
ListOption = Annotated[bool, typer.Option("--list", help="List the slabs (and DRAFTER's own).")]
PruneOption = Annotated[
    bool,
    typer.Option("--prune", help="Remove slabs that are stale, damaged or of no source."),
]
OlderThanOption = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        metavar="DAYS",
        min=0,
        help="With --prune: slabs too that nobody has used for so many days.",
        show_default=False,
    ),
]
ToSizeOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="SIZE",
        help="With --prune: slabs too until the others take no more than this (20GB, 500MB), the "
        "least recently used first.",
        show_default=False,
    ),
]
SlabJsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_size(text: str) -> int:
    """Bytes of `20GB`, `500 MB` or `1000`; OptionError for anything else."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise OptionError(f"a size is {text!r}, expected a number and B, KB, MB, GB or TB")
    return int(float(found[1]) * UNITS[found[2]])
