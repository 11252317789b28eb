"""`dflash quantize`: its options as dataclasses, and one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from ...core.options import LoadOptions, QuantizeOptions
from ..actions.quantize import (
    BUILT_IN_PROMPTS,
    Comparing,
    Making,
    QuantizeCall,
    SlabsAsked,
    run_quantize,
)
from ..options import model as load
from ..options import output as show
from ..options import quantize as own


class QuantizeCommand(TyperCommand):
    """Lets `--check` stand alone or before a file, which typer's options cannot do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--check` its value; the next word is one only where it is a file."""
        given = list(args)
        for index, arg in enumerate(given):
            if arg == "--check":
                following = given[index + 1] if index + 1 < len(given) else ""
                if not Path(following).is_file():
                    given[index] = f"--check={BUILT_IN_PROMPTS}"
        return super().parse_args(ctx, given)


def quantize(
    drafter: own.PackedArgument = None,
    bits: own.BitsOption = QuantizeOptions.bits,
    group_size: own.GroupSizeOption = QuantizeOptions.group_size,
    out: own.OutOption = None,
    force: own.ForceOption = False,
    check: own.CheckOption = None,
    model: load.ModelOption = LoadOptions.model,
    verify: own.VerifySourceOption = False,
    list_all: own.ListOption = False,
    prune: own.PruneOption = False,
    older_than: own.OlderThanOption = None,
    to: own.ToSizeOption = None,
    as_json: own.SlabJsonOption = False,
    quiet: show.QuietOption = False,
) -> None:
    """Pack a drafter's projections into a slab that opens without quantizing again.

    generate makes and finds the same slab by itself; --check's figures are counts, not speeds.
    """
    run_quantize(
        QuantizeCall(
            SlabsAsked(
                drafter, list_all, prune, older_than, None if to is None else own.parse_size(to)
            ),
            QuantizeOptions(bits, group_size),
            Making(out, force, verify),
            Comparing(check, model),
            as_json,
            quiet,
        )
    )
