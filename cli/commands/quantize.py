"""`dflash quantize`: a drafter's slab made, checked, listed or pruned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ...core.errors import OptionError
from ...core.options import CheckOptions, GenerateOptions, QuantizeOptions
from ..input.prompt_file import encode_prompt_line, read_prompt_lines
from ..options.shared import ModelOption
from ..text.progress import Progress
from ..text.slab import format_check, format_quantized, format_slabs

if TYPE_CHECKING:
    from ...drafters.quantize import Quantized, SlabCheck

SCHEMA = "dflash.quantize/1"
BUILT_IN_PROMPTS = "bundled"


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
    drafter: Annotated[
        str | None,
        typer.Argument(
            metavar="DRAFTER", help="Directory, hub id, bundled:dflash or bundled:dflash2."
        ),
    ] = None,
    bits: Annotated[
        int, typer.Option("--bits", metavar="4|8", help="Bits a weight.")
    ] = QuantizeOptions.bits,
    group_size: Annotated[
        int,
        typer.Option("--group-size", metavar="32|64|128", help="Weights that share a scale."),
    ] = QuantizeOptions.group_size,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Make DIR a drafter of its own: the slab as model.safetensors, and config.json. "
            "Omitted: beside the checkpoint, or in the user's cache directory.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it anew.")] = False,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="[PROMPTS]",
            help="Compare with the drafter as it is: error of each tensor, share of equal drafts, "
            "tokens/round. PROMPTS: a file of prompts, one a line, or .jsonl with text, user or "
            "prompt_ids. Omitted: some of the bundled ones.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Hash the source, although its size and time are as before."),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the slabs (and DRAFTER's own).")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove slabs that are stale, damaged or of no source."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")
    ] = False,
) -> None:
    """Pack a drafter's projections into a slab that opens without quantizing again.

    generate makes and finds the same slab by itself; --check's figures are counts, not speeds.
    """
    if list_all or prune:
        _list(drafter, prune=prune, verify=verify, as_json=as_json)
        return
    if drafter is None:
        raise OptionError("give DRAFTER (a directory or hub id), or --list, or --prune")
    options = QuantizeOptions(bits, group_size)
    progress = Progress(enabled=not quiet)
    with progress:
        from ...drafters.quantize import quantize_drafter

        report = progress.report(notes=not quiet)
        made = quantize_drafter(drafter, options, report, out=out, force=force, verify=verify)
        found = None if made is None or check is None else _check(made, model, check, progress)
    if as_json:
        slab = None if made is None else made.to_dict()
        print(json.dumps(_document(slab=slab, check=None if found is None else found.to_dict())))
    elif made is not None:
        print(format_quantized(made))
        if found is not None:
            print(format_check(found))


def _check(made: Quantized, model: str | None, prompts: str, progress: Progress) -> SlabCheck:
    from ...drafters.bundled.paths import PROMPTS_FILE, TARGET
    from ...drafters.pair import load_pair
    from ...drafters.quantize import SlabCheck, check_agreement, check_tensors_of

    given = prompts != BUILT_IN_PROMPTS
    if model is None and made.config.path.parent == PROMPTS_FILE.parent:
        model = TARGET
    if model is None and given:
        raise OptionError("--check PROMPTS needs the target: give --model")
    lines = read_prompt_lines(Path(prompts) if given else PROMPTS_FILE)
    progress.say("comparing weights")
    errors = check_tensors_of(made)
    if model is None:
        return SlabCheck(errors)
    pair = load_pair(
        model,
        str(made.config.path),
        "dflash",
        progress=progress.say,
        drafter_bits=16,
        stored_probe=False,
        exact=False,
    )
    chosen = lines if given else lines[: CheckOptions.prompts]
    ids = [encode_prompt_line(pair.tokenizer, line) for line in chosen]
    progress.say(f"comparing drafts over {len(ids)} prompts")
    options = GenerateOptions(max_tokens=CheckOptions.max_tokens)
    return SlabCheck(errors, check_agreement(made, pair, ids, options))


def _list(drafter: str | None, *, prune: bool, verify: bool, as_json: bool) -> None:
    from ...drafters.locate import locate
    from ...drafters.slab.listing import list_slabs, prune_slabs

    entries = list_slabs(None if drafter is None else locate(drafter), verify=verify)
    removed = prune_slabs(entries) if prune else []
    if as_json:
        slabs = [{**entry.to_dict(), "removed": entry in removed} for entry in entries]
        print(json.dumps(_document(slabs=slabs)))
    else:
        print(format_slabs(entries, removed))


def _document(**parts: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, **parts}
