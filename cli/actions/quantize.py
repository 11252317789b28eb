"""A drafter's slab made, checked, listed or pruned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import OptionError
from ...core.options import CheckOptions, GenerateOptions, LoadOptions, QuantizeOptions
from ...core.report import Report
from ..input.prompt_file import encode_prompt_line, read_prompt_lines
from ..text.footer import print_note
from ..text.progress import Progress
from ..text.slab import format_check, format_pruned, format_quantized, format_slabs
from ..text.terminal import print_document, print_text

if TYPE_CHECKING:
    from ...drafters.quantize import Quantized, SlabCheck

SCHEMA = "dflash.quantize/1"
BUILT_IN_PROMPTS = "bundled"


@dataclass(frozen=True)
class SlabsAsked:
    """The drafter to pack, or a look at the slabs that there are."""

    drafter: str | None = None
    list_all: bool = False
    prune: bool = False
    older_than_days: float | None = None
    to_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.prune and (self.older_than_days is not None or self.to_bytes is not None):
            raise OptionError("--older-than and --to say what --prune removes: give --prune")


@dataclass(frozen=True)
class Making:
    """out: a directory that becomes a drafter of its own; force: make it anew; verify: hash the
    source although its size and time are as before."""

    out: Path | None = None
    force: bool = False
    verify: bool = False


@dataclass(frozen=True)
class Comparing:
    """prompts: a file, or BUILT_IN_PROMPTS; None: no comparison. model: the target of that."""

    prompts: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class QuantizeCall:
    """One call of `dflash quantize`."""

    asked: SlabsAsked
    options: QuantizeOptions
    making: Making
    comparing: Comparing
    as_json: bool = False
    quiet: bool = False


def run_quantize(call: QuantizeCall) -> None:
    """Make a slab and perhaps compare it, or list what is there."""
    if call.asked.list_all or call.asked.prune:
        _list(call)
        return
    if call.asked.drafter is None:
        raise OptionError("give DRAFTER (a directory or hub id), or --list, or --prune")
    if call.comparing.model is not None and call.comparing.prompts is None and not call.quiet:
        print_note("--model is ignored: it is the target of --check, which was not given")
    progress = Progress(enabled=not call.quiet)
    with progress:
        from ...drafters.quantize import quantize_drafter

        report = progress.report(notes=not call.quiet)
        making = call.making
        made = quantize_drafter(
            call.asked.drafter,
            call.options,
            report,
            out=making.out,
            force=making.force,
            verify=making.verify,
        )
        found, prompts = None, call.comparing.prompts
        if made is not None and prompts is not None:
            found = _check(made, call.comparing.model, prompts, progress)
    if call.as_json:
        slab = None if made is None else made.to_dict()
        check = None if found is None else found.to_dict()
        print_document(_document(slab=slab, check=check))
    elif made is not None:
        print_text(format_quantized(made))
        if found is not None:
            print_text(format_check(found))


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
    loading = LoadOptions(
        model=model,
        drafter=str(made.config.path),
        speculation="dflash",
        drafter_bits=16,
        stored_probe=False,
        exact=False,
    )
    pair = load_pair(loading, Report(say=progress.say))
    chosen = lines if given else lines[: CheckOptions.prompts]
    ids = [encode_prompt_line(pair.tokenizer, line) for line in chosen]
    progress.say(f"comparing drafts over {len(ids)} prompts")
    options = GenerateOptions(max_tokens=CheckOptions.max_tokens)
    return SlabCheck(errors, check_agreement(made, pair, ids, options))


def _list(call: QuantizeCall) -> None:
    from ...drafters.locate import locate
    from ...drafters.slab.listing import Bounds, list_slabs, prune_slabs

    drafter = call.asked.drafter
    entries = list_slabs(None if drafter is None else locate(drafter), verify=call.making.verify)
    bounds = Bounds(call.asked.older_than_days, call.asked.to_bytes)
    removed = prune_slabs(entries, bounds) if call.asked.prune else []
    if call.as_json:
        slabs = [{**entry.to_dict(), "removed": entry in removed} for entry in entries]
        print_document(_document(slabs=slabs))
    elif call.asked.prune:
        print_text(format_pruned(entries, removed))
    else:
        print_text(format_slabs(entries))


def _document(**parts: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, **parts}
