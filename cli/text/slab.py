"""Text of `dflash quantize`: what was made, what it costs, and the listing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...drafters.quantize import Quantized, SlabCheck
    from ...drafters.slab.listing import SlabEntry


def format_bytes(count: int) -> str:
    """1.266 GB, 1.5 MB."""
    return f"{count / 1e9:.3f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def format_quantized(made: Quantized) -> str:
    """Where the slab is, what is in it, and how long it took."""
    plan = made.plan
    source_bytes = plan.source.size_bytes
    copied = len(plan.source.tensors) - len(plan.packed)
    verb = "built" if made.built else "found whole, nothing written"
    return "\n".join(
        [
            f"{made.path}",
            f"{verb} in {made.elapsed_sec:.1f} s, peak memory {format_bytes(made.peak_rss_bytes)}",
            f"{format_bytes(made.size_bytes)} for {format_bytes(source_bytes)} "
            f"({made.size_bytes / source_bytes:.0%}): {len(plan.packed)} projections at "
            f"{plan.options.bits} bits in groups of {plan.options.group_size}, {copied} tensors "
            "as they stand",
        ]
    )


def format_check(check: SlabCheck) -> str:
    """Error of the worst tensors, agreement and tokens a round."""
    worst = sorted(check.tensors, key=lambda entry: -entry.relative_rms)
    mean = sum(entry.relative_rms for entry in worst) / len(worst)
    lines = [f"relative RMS error: mean {mean:.2%} over {len(worst)} tensors; the largest:"]
    lines += [
        f"  {entry.relative_rms:.2%} (max {entry.max_abs:.4f}) {entry.name}" for entry in worst[:5]
    ]
    found = check.agreement
    if found is None:
        return "\n".join([*lines, "agreement of drafts: not measured, it needs --model TARGET"])
    if found.agreement is None:
        return "\n".join([*lines, "agreement of drafts: no round was run"])
    by_position = " ".join(
        f"{same / drafts:.0%}" for same, drafts in zip(found.same, found.drafts, strict=True)
    )
    lines += [
        f"drafts as before: {found.agreement:.1%} of {sum(found.drafts):,} (by position "
        f"{by_position})",
        f"tokens/round: {found.tokens_per_round_before:.3f} before over {found.rounds_before} "
        f"rounds, {found.tokens_per_round_after:.3f} after over {found.rounds_after}",
        f"ids equal in {found.ids_equal} of {found.prompts} prompts",
    ]
    return "\n".join(lines)


def format_slabs(entries: list[SlabEntry]) -> str:
    """One block a file."""
    return "\n".join(line for entry in entries for line in _lines(entry)) or "no slabs"


def format_pruned(entries: list[SlabEntry], removed: list[SlabEntry]) -> str:
    """What was removed and freed, what is not ours and stays, and how much is left."""
    foreign = [entry for entry in entries if entry.state == "foreign"]
    left = len(entries) - len(removed)
    kept = f"{left} file{'s' * (left != 1)} kept"
    freed = sum(entry.size_bytes for entry in removed)
    done = (
        f"removed {len(removed)}, freed {format_bytes(freed)}" if removed else "nothing to remove"
    )
    lines = [line for entry in (*removed, *foreign) for line in _lines(entry)]
    return "\n".join([*lines, f"{done}; {kept}"])


def _lines(entry: SlabEntry) -> Iterator[str]:
    packing = f", {entry.bits} bits in groups of {entry.group_size}" if entry.bits else ""
    yield f"{entry.path}"
    yield f"  {entry.state}, {format_bytes(entry.size_bytes)}{packing}"
    if entry.source_path:
        yield f"  of {entry.source_path}"
    if entry.detail:
        yield f"  {entry.detail}"
