"""What `dflash quantize` does, without its printing: one slab made or opened, and checked."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.checkpoint.weight_source import read_source
from ..core.errors import SlabError, resource_errors
from ..core.options import GenerateOptions, QuantizeOptions
from ..core.report import Report
from .dflash.config import DrafterConfig, read_drafter_config
from .dflash.layers import make_rope
from .dflash.load import bind_drafter, with_biases
from .dtype import drafter_dtype
from .locate import locate
from .pair import Pair
from .slab.build import Plan
from .slab.check import DraftAgreement, PackingError, compare_drafters, packing_errors
from .slab.export import whole_export
from .slab.file_format import Slab
from .slab.load import plan_drafter, slab_store
from .slab.use import SlabStore


@dataclass(frozen=True)
class Quantized:
    """A slab that is on the disk and whole. elapsed_sec: of making or checking it."""

    config: DrafterConfig
    store: SlabStore
    path: Path
    built: bool
    size_bytes: int
    elapsed_sec: float
    peak_rss_bytes: int

    @property
    def plan(self) -> Plan:
        """Its source and layout."""
        return self.store.plan

    def to_dict(self) -> dict[str, Any]:
        """The `slab` object of `--json`."""
        plan = self.plan
        return {
            "path": str(self.path),
            "source_path": str(plan.source.directory),
            "built": self.built,
            "bits": plan.options.bits,
            "group_size": plan.options.group_size,
            "packed_tensors": len(plan.packed),
            "copied_tensors": len(plan.source.tensors) - len(plan.packed),
            "size_bytes": self.size_bytes,
            "source_bytes": plan.source.size_bytes,
            "elapsed_sec": self.elapsed_sec,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


@dataclass(frozen=True)
class SlabCheck:
    """agreement is None where no target was given."""

    tensors: list[PackingError] = field(default_factory=list)
    agreement: DraftAgreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """The `check` object of `--json`."""
        agreement = None if self.agreement is None else self.agreement.to_dict()
        return {"tensors": [entry.to_dict() for entry in self.tensors], "agreement": agreement}


@resource_errors()
def quantize_drafter(
    reference: str,
    options: QuantizeOptions,
    report: Report,
    *,
    out: Path | None = None,
    force: bool = False,
    verify: bool = False,
) -> Quantized | None:
    """Make the slab of a drafter, or check the one that is there; None for a drafter that is
    quantized already.

    reference: directory, hub id or bundled:NAME; out: a directory that becomes a drafter of its
    own. Raises ModelNotFound, ConfigError, TensorError, SlabError, OutputExists or ResourceError.
    """
    config = read_drafter_config(locate(reference))
    source = read_source(config.path)
    if source.is_quantized and out is not None:
        raise SlabError(
            f"{config.path} is quantized already, and packing it once more would lose twice: give "
            f"the bfloat16 drafter to make {out}, or copy the directory as it is"
        )
    if source.is_quantized:
        report.note(f"{config.path} is quantized already and is used as it is: nothing to do")
        return None
    config = with_biases(config, source.tensors)
    plan = plan_drafter(config, source, options)
    started = time.perf_counter()

    def take(slab: Slab) -> int:
        slab.verify(report.bytes_of("checking the slab"))
        return slab.size_bytes

    if out is None:
        store = slab_store(plan, report, force=force, verify=verify)
        found = store.obtain(take)
    else:
        with whole_export(out, plan, force=force) as place:
            store = slab_store(plan, report, [place], force=force, verify=verify)
            found = store.obtain(take)
    elapsed_sec = time.perf_counter() - started
    return Quantized(
        config, store, found.path, found.built, found.value, elapsed_sec, peak_rss_bytes()
    )


def check_tensors_of(made: Quantized) -> list[PackingError]:
    """Error of every packed tensor. Raises SlabError for a slab that is damaged by now."""
    return _reopened(made).obtain(lambda slab: packing_errors(made.plan, slab)).value


def check_agreement(
    made: Quantized, pair: Pair, prompts: Sequence[Sequence[int]], options: GenerateOptions
) -> DraftAgreement:
    """The slab's drafter against `pair`'s, which is loaded as its file has it (16 bits)."""
    dtype = drafter_dtype(pair.target)
    arrays = _reopened(made).obtain(lambda slab: slab.read_arrays(dtype)).value
    if pair.drafter is None:
        raise SlabError(f"{made.config.path} could not be loaded: {pair.route.reason}")
    packed = bind_drafter(made.config, pair.target, make_rope(made.config), arrays)
    return compare_drafters(
        pair.target, lambda: pair.tokenizer.detokenizer, pair.drafter, packed, prompts, options
    )


def _reopened(made: Quantized) -> SlabStore:
    return SlabStore(made.plan, [made.path], made.store.report, made.store.source_path)


def peak_rss_bytes() -> int:
    """Most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
