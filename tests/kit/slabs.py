"""Helpers of the slab tests: tiny bf16 drafters on disk, and what a loader would do with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.weight_source import read_source
from dflash_suite.core.options import QuantizeOptions
from dflash_suite.core.report import Report
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.slab.build import Plan
from dflash_suite.drafters.slab.file_format import Slab
from dflash_suite.drafters.slab.load import plan_drafter, slab_store
from dflash_suite.drafters.slab.use import Obtained
from tests.kit.tiny_drafter import random_tensors, raw_drafter, save_drafter

Arrays = dict[str, mx.array]


def half_tensors(raw: dict[str, Any], seed: int = 0) -> Arrays:
    """Random tensors in bfloat16, as published."""
    return {name: array.astype(mx.bfloat16) for name, array in random_tensors(raw, seed).items()}


def save_half(
    directory: Path, kind: DrafterKind = "dflash2", seed: int = 0, **changes: Any
) -> Path:
    """A tiny bfloat16 drafter on disk."""
    raw = raw_drafter(kind, **changes)
    return save_drafter(directory, raw, half_tensors(raw, seed))


def plan_of(checkpoint: Path, bits: int = 4, group_size: int = 64) -> Plan:
    """The slab that a checkpoint would have."""
    options = QuantizeOptions(bits, group_size)
    return plan_drafter(read_drafter_config(checkpoint), read_source(checkpoint), options)


@dataclass
class Use:
    """One use of a slab, and what was said and counted meanwhile."""

    found: Obtained[Arrays]
    notes: list[str]
    quantize_calls: int

    @property
    def arrays(self) -> Arrays:
        """By name in the file."""
        return self.found.value

    @property
    def path(self) -> Path:
        """Where the slab stands."""
        return self.found.path


def use(
    checkpoint: Path,
    bits: int = 4,
    group_size: int = 64,
    places: list[Path] | None = None,
    *,
    force: bool = False,
    verify: bool = False,
) -> Use:
    """Make or open a slab and read it, as a loader does."""
    notes: list[str] = []
    store = slab_store(
        plan_of(checkpoint, bits, group_size),
        Report(note=notes.append),
        places,
        force=force,
        verify=verify,
    )
    with counted_quantize() as calls:
        found = store.obtain(Slab.read_arrays)
    return Use(found, notes, calls.count)


@dataclass
class Calls:
    """How often mx.quantize was called, and with what."""

    count: int = 0
    shapes: list[tuple[int, ...]] = field(default_factory=list)


@contextmanager
def counted_quantize() -> Iterator[Calls]:
    """Count every call of mx.quantize, whoever makes it."""
    calls, real = Calls(), mx.quantize

    def counting(weight: mx.array, *args: Any, **settings: Any) -> Any:
        calls.count += 1
        calls.shapes.append(tuple(weight.shape))
        return real(weight, *args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "quantize", counting)
        yield calls


def same_bits(left: mx.array, right: mx.array) -> bool:
    """Equal shape, dtype and bits."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if mx.issubdtype(left.dtype, mx.floating):
        kind = mx.uint32 if left.dtype == mx.float32 else mx.uint16
        left, right = left.view(kind), right.view(kind)
    return bool(mx.array_equal(left, right))
