"""The default block of a loaded drafter, by the probe that `dflash doctor --probe` stored of it."""

from __future__ import annotations

from collections.abc import Callable

from ..core.drafter import Drafter
from ..core.options import StoredBlock
from ..core.probes import ProbeKey, load_probe, probe_key
from ..core.target import Target
from .dflash import DFlashDrafter


def drafter_key(key: ProbeKey, drafter: Drafter) -> ProbeKey | None:
    """The key of a target with a drafter; None for an MTP head, which has no block."""
    if not isinstance(drafter, DFlashDrafter):
        return None
    return key.with_drafter(drafter.config.path, drafter.bits)


def use_stored_block(target: Target, drafter: Drafter, note: Callable[[str], None]) -> None:
    """Give a DFlash drafter the best block that was measured of it on this device, if any was.

    note: told of a probe that is there and does not hold (core/probes.py).
    """
    if not isinstance(drafter, DFlashDrafter):
        return
    key = probe_key(target)
    known = drafter_key(key, drafter) if key is not None else None
    probe = load_probe(known, note) if known is not None else None
    if probe is not None and probe.block is not None:
        drafter.stored = StoredBlock(probe.block, probe.date)
