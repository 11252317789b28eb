"""A drafter at 4, 8 or 16 bits: through its slab, or as its own file has it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from ...core.checkpoint.weight_source import Source, read_source
from ...core.errors import SlabError, SlabWriteError
from ...core.options import DEFAULT_DRAFTER_BITS, QuantizeOptions, check_drafter_bits
from ...core.report import Report
from ..dflash.config import DrafterConfig
from ..dflash.drafter import DFlashDrafter, DFlashModel, TargetEnds
from ..dflash.layers import make_rope
from ..dflash.load import bind_drafter, expected_shapes, load_drafter, with_biases
from ..dflash.tensors import check_tensors, module_name
from .build import MemorySink, Plan, linear_weights, pack_source, plan_slab
from .file_format import Slab
from .store import slab_places
from .use import SlabStore


def load_drafter_at(
    config: DrafterConfig,
    ends: TargetEnds,
    dtype: mx.Dtype = mx.bfloat16,
    bits: int | None = None,
    report: Report | None = None,
    source: Source | None = None,
) -> DFlashDrafter:
    """As load_drafter, with 4- or 8-bit projections from the slab, which is made on first use.

    bits None is the default for a drafter that is not quantized yet; one that is is used as it
    is. source: its headers, where they were read before. Where no disk takes the slab the weights
    are packed in memory, and a note says so. Raises ConfigError, ModelNotFound or TensorError.
    """
    report = report or Report()
    width = check_drafter_bits(DEFAULT_DRAFTER_BITS if bits is None else bits)
    if width == 16:
        return load_drafter(config, ends, dtype)
    rope = make_rope(config)
    source = source or read_source(config.path)
    if source.is_quantized:
        if bits is not None:
            report.note(f"{config.path} is quantized already and is used as it is")
        return load_drafter(config, ends, dtype)
    config = with_biases(config, source.tensors)
    options = QuantizeOptions(width)
    try:
        plan = plan_drafter(config, source, options)
    except SlabError as exc:
        report.note(f"{exc}. The drafter is used as it is")
        return load_drafter(config, ends, dtype)
    arrays = _packed_arrays(plan, dtype, report)
    return bind_drafter(config, ends, rope, arrays)


def plan_drafter(config: DrafterConfig, source: Source, options: QuantizeOptions) -> Plan:
    """The slab of a drafter whose tensors are those of its config.json (after with_biases).

    Raises TensorError where they are not, SlabError where nothing can be packed.
    """
    model = DFlashModel(config)
    check_tensors(config, source.tensors, expected_shapes(model))
    names = {name: module_name(name) for name in source.tensors}
    return plan_slab(source, linear_weights(model, names), options)


def slab_store(
    plan: Plan,
    report: Report,
    places: list[Path] | None = None,
    *,
    force: bool = False,
    verify: bool = False,
) -> SlabStore:
    """The store of a drafter's slab; `places` None are the usual ones."""
    directory = plan.source.directory.resolve()
    if places is None:
        usual = slab_places(directory, plan.options)
        return SlabStore(plan, usual, report, str(directory), force, verify)
    return SlabStore(plan, places, report, "", force, verify)


def _packed_arrays(plan: Plan, dtype: mx.Dtype, report: Report) -> dict[str, mx.array]:
    """Arrays by source name; floating ones in `dtype`."""

    def take(slab: Slab) -> dict[str, mx.array]:
        return slab.read_arrays(dtype, report.bytes_of(f"opening {slab.path.name}"))

    try:
        return slab_store(plan, report).obtain(take).value
    except SlabWriteError as exc:
        report.note(f"{exc}. Quantizing in memory, for this run only")
        sink = MemorySink(plan)
        pack_source(plan, sink, report.bytes_of("quantizing"))
        return sink.arrays(dtype)
