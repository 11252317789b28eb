"""The slab of a drafter: there and valid, to be made again, or not made yet."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import DflashError, SlabError
from ...core.options import DEFAULT_DRAFTER_BITS, QuantizeOptions
from ...drafters.slab.store import TEMPORARY, slab_places
from ..results import CheckResult
from ..units import readable
from .check import Words, check
from .subjects import DrafterSubject

OPTIONS = QuantizeOptions(DEFAULT_DRAFTER_BITS)
"""What generate uses unless it is told otherwise."""
USABLE = ("current", "touched", "busy")


def packed_bytes(drafter: DrafterSubject) -> int | None:
    """Size of the slab that generate uses or makes; None where the drafter is used as it is."""
    from ...core.checkpoint.weight_source import read_source
    from ...drafters.slab.load import plan_drafter

    config = drafter.resolved
    source = read_source(drafter.directory)
    if source.is_quantized:
        return None
    try:
        return plan_drafter(config, source, OPTIONS).size_bytes
    except SlabError:  # nothing in it can be packed
        return None


@check(
    "drafter.slab",
    f"a valid {OPTIONS.label} slab, or none yet",
    "nothing must be done: generate makes it again; dflash quantize --prune clears it away",
)
def slab(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Judged by its header, and with --verify by all its data and its source's content."""
    size = packed_bytes(drafter)
    if size is None:
        return say.passed("not needed: the drafter is used as its file has it")
    if drafter.is_mirror:
        return say.passed(f"made at the first use, {readable(size)}")
    from ...drafters.slab.listing import list_slabs

    try:
        found = _find(drafter)
        listed = list_slabs(drafter.directory, verify=drafter.verify) if found else []
    except (DflashError, OSError) as exc:  # generate packs in memory then
        return say.warned(str(exc))
    if not found:
        return say.passed(f"none yet; generate makes one of {readable(size)} at its first use")
    entries = [entry for entry in listed if entry.path in found]
    bad = [entry for entry in entries if entry.state not in USABLE]
    lines = [
        f"{entry.path}, {readable(entry.size_bytes)}: {entry.state}"
        + (f" ({entry.detail})" if entry.detail else "")
        for entry in (bad or entries)
    ]
    return say.warned("; ".join(lines)) if bad else say.passed("; ".join(lines))


def _find(drafter: DrafterSubject) -> list[Path]:
    places = slab_places(drafter.directory, OPTIONS)
    files = [file for place in places for file in (place, place.with_name(place.name + TEMPORARY))]
    return [file for file in files if file.is_file()]
