"""The target's MTP head as a method: in the target's own files, or in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.block import Block
from ...core.errors import DflashError
from ...core.options import LoadOptions
from ...core.report import Report
from .method import Candidate, Method

if TYPE_CHECKING:
    from ...core.checkpoint.target_config import TargetConfig
    from ...core.decode.drafter import Drafter


def find(target: TargetConfig, loading: LoadOptions, report: Report) -> Candidate:
    """The head of --mtp, else the one in the target's files.

    Raises ModelNotFound, ConfigError, TensorError, UnsupportedModel or DrafterMismatch.
    """
    from ..dtype import drafter_dtype
    from ..locate import locate
    from ..mtp.find import absence, find_head, open_folder
    from ..mtp.load import load_head

    if loading.mtp is not None:
        source = open_folder(locate(loading.mtp), target)
    elif (embedded := find_head(target)) is not None:
        source = embedded
    else:
        return Candidate(problem=absence(target))
    return Candidate(
        lambda loaded: load_head(
            source, loaded, drafter_dtype(loaded), loading.mtp_hidden, loading.mtp_norms
        ),
        source.where,
    )


def head_given_as_drafter(loading: LoadOptions) -> LoadOptions:
    """--drafter may name an MTP head's folder; only what is no DFlash checkpoint is looked at."""
    from ...core.json_values import read_json
    from ..dflash.container import classify
    from ..locate import locate
    from ..mtp.find import is_head_folder

    given = loading.drafter
    if given is None or loading.speculation not in ("auto", "mtp") or loading.mtp is not None:
        return loading
    try:
        directory = locate(given)
        classify(read_json(directory / "config.json"), directory / "config.json")
    except DflashError:
        if Path(given).is_dir() and is_head_folder(Path(given)):
            return replace(loading, drafter=None, mtp=given)
    return loading


def depth(block: Block, asked: bool) -> str:
    """The drafts of its chain, always."""
    return f" k={block.draft_tokens}"


def arm_settings(loading: LoadOptions, drafter: Drafter, block: Block) -> Mapping[str, object]:
    """Where it is, the drafts of its chain, and what feeds it."""
    return {
        "drafter": loading.mtp or "the target's own head",
        "draft_tokens": block.draft_tokens,
        "mtp_hidden": loading.mtp_hidden,
    }


MTP = Method(
    speculation="mtp",
    option="--mtp",
    absent="no MTP head was found",
    loaded="the target's MTP head loaded",
    ignored="concerns an MTP head alone and is ignored: none is loaded",
    files_option="mtp",
    load_options=("mtp", "mtp_hidden", "mtp_norms"),
    noted_options=("mtp", "mtp_hidden", "mtp_norms"),
    request_options=("draft_tokens",),
    check_groups=("mtp",),
    find=find,
    depth=depth,
    arm_settings=arm_settings,
)
