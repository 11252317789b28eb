"""A drafter's default block, by the probe that `dflash doctor --probe` stored of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ..core.block import StoredBlock
from ..core.decode.drafter import Drafter
from ..core.probe_store import ProbeKey, load_probe, probe_key
from ..core.target.target import Target


@runtime_checkable
class ProbedDrafter(Protocol):
    """A drafter that a stored probe can be found for, and whose default block it sets."""

    stored: StoredBlock | None

    def probe_key(self, key: ProbeKey) -> ProbeKey | None:
        """The key of its target, with this drafter; None for one that is in no files."""


def drafter_key(key: ProbeKey, drafter: Drafter) -> ProbeKey | None:
    """The key of a target with a drafter; None for one that is in no files."""
    return drafter.probe_key(key) if isinstance(drafter, ProbedDrafter) else None


def use_stored_block(target: Target, drafter: Drafter, note: Callable[[str], None]) -> None:
    """Give a drafter the best block that was measured of it on this device, if any was.

    note: told of a probe that is there and does not hold (core/probe_store.py).
    """
    if not isinstance(drafter, ProbedDrafter):
        return
    key = probe_key(target)
    known = drafter.probe_key(key) if key is not None else None
    probe = load_probe(known, note) if known is not None else None
    if probe is not None and probe.block is not None:
        drafter.stored = StoredBlock(probe.block, probe.date)
