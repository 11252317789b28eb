"""DFlash and DFlash2 as a method: block drafters in a directory of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...core.block import Block
from ...core.options import LoadOptions
from ...core.report import Report
from .method import Candidate, Method

if TYPE_CHECKING:
    from ...core.checkpoint.target_config import TargetConfig
    from ...core.decode.drafter import Drafter

ABSENT = "no drafter was given"


def find(target: TargetConfig, loading: LoadOptions, report: Report) -> Candidate:
    """The drafter of loading.drafter, which stands for the one beside the target too.

    Raises ModelNotFound, ConfigError, TensorError, UnsupportedModel or DrafterMismatch.
    """
    from ..dflash.config import read_drafter_config
    from ..dflash.load import check_source
    from ..dtype import drafter_dtype
    from ..guards import check_pair
    from ..locate import locate
    from ..slab.load import load_drafter_at

    if loading.drafter is None:
        return Candidate(problem=ABSENT)
    config = read_drafter_config(locate(loading.drafter))
    check_pair(target, config)
    if config.label_note:
        report.note(config.label_note)
    checked, source = check_source(config)
    return Candidate(
        lambda loaded: load_drafter_at(
            checked, loaded, drafter_dtype(loaded), loading.drafter_bits, report, source
        ),
        config.path,
    )


def depth(block: Block, asked: bool) -> str:
    """The block, where it was asked for."""
    return f" block {block.effective}" if asked else ""


def arm_settings(loading: LoadOptions, drafter: Drafter, block: Block) -> Mapping[str, object]:
    """Where it is, its bits and its block."""
    from ..locate import find_drafter

    return {
        "drafter": find_drafter(loading.model, loading.drafter) or "",
        "drafter_bits": getattr(drafter, "bits", None),
        "block_size": block.effective,
    }


DFLASH = Method(
    speculation="dflash",
    option="--drafter",
    absent=ABSENT,
    loaded="{name} drafter loaded",
    ignored="concerns DFlash alone and is ignored on route {route}",
    files_option="drafter",
    load_options=("drafter", "drafter_bits"),
    noted_options=("drafter_bits",),
    request_options=("block_size",),
    check_groups=("drafter", "pair"),
    find=find,
    depth=depth,
    arm_settings=arm_settings,
)
