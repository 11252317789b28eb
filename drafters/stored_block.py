"""A drafter's or head's default block, by the probe that `dflash doctor --probe` stored of it."""

from __future__ import annotations

from collections.abc import Callable

from ..core.decode.drafter import Drafter
from ..core.options import StoredBlock
from ..core.probe_store import ProbeKey, load_probe, probe_key
from ..core.target.target import Target
from .dflash.drafter import DFlashDrafter
from .mtp.drafter import MtpDrafter


def drafter_key(key: ProbeKey, drafter: Drafter) -> ProbeKey | None:
    """The key of a target with a drafter; None for one that is in no files."""
    if isinstance(drafter, DFlashDrafter):
        return key.with_drafter(drafter.config.path, drafter.bits)
    if isinstance(drafter, MtpDrafter) and drafter.place is not None:
        return key.with_head(drafter.place, drafter.hidden, drafter.files)
    return None


def use_stored_block(target: Target, drafter: Drafter, note: Callable[[str], None]) -> None:
    """Give a drafter the best block that was measured of it on this device, if any was.

    note: told of a probe that is there and does not hold (core/probe_store.py).
    """
    if not isinstance(drafter, DFlashDrafter | MtpDrafter):
        return
    key = probe_key(target)
    known = drafter_key(key, drafter) if key is not None else None
    probe = load_probe(known, note) if known is not None else None
    if probe is not None and probe.block is not None:
        drafter.stored = StoredBlock(probe.block, probe.date)
