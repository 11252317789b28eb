"""The drafters that a request may use: judged by configs and headers first, loaded later.

So that an explicit route fails, and `auto` knows why, before the target's big load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import mlx.core as mx

from ..core.checkpoint.target_config import TargetConfig, read_json
from ..core.decode.drafter import Drafter
from ..core.errors import DflashError
from ..core.options import MtpHidden, Speculation
from ..core.target.target import Target
from .dflash.config import read_drafter_config
from .dflash.load import check_source
from .guards import check_pair
from .kinds import classify
from .locate import locate
from .mtp.find import absence, find_head, is_head_folder, open_folder
from .mtp.load import load_head
from .slab.load import load_drafter_at
from .slab.store import Report

T = TypeVar("T")


@dataclass(frozen=True)
class DrafterRequest:
    """What was asked for: the --speculation value, and references to a drafter and a head.

    drafter_bits and report concern a DFlash drafter's slab (slab_load.py).
    """

    speculation: Speculation
    drafter: str | None = None
    mtp: str | None = None
    mtp_hidden: MtpHidden = "post"
    drafter_bits: int | None = None
    report: Report | None = None


@dataclass(frozen=True)
class Candidate:
    """One drafter: `load` binds it to the target, or `problem` says why there is nothing to load.

    where: its directory, for progress; kind: `dflash` or `mtp`.
    """

    load: Callable[[Target], Drafter] | None = None
    where: Path | None = None
    problem: str = ""
    kind: str = ""


def find_candidates(target: TargetConfig, request: DrafterRequest) -> list[Candidate]:
    """In the order in which they are tried: DFlash, then MTP.

    Under auto a bad one becomes a problem; under an explicit value it raises. `none` looks at
    nothing; an explicit value looks at its own kind alone.
    """
    request = _head_given_as_drafter(request)
    makers = {"dflash": _dflash, "mtp": _mtp}
    wanted = {"auto": ("dflash", "mtp"), "none": ()}.get(
        request.speculation, (request.speculation,)
    )
    candidates = []
    for kind in wanted:
        make = partial(makers[kind], target, request)
        found, problem = tolerate(request.speculation, make)
        candidates.append(replace(found or Candidate(problem=problem), kind=kind))
    return candidates


def tolerate(speculation: Speculation, action: Callable[[], T]) -> tuple[T | None, str]:
    """(result, ""), or under auto (None, why not); an explicit request raises."""
    try:
        return action(), ""
    except DflashError as exc:
        if speculation != "auto":
            raise
        return None, str(exc)


def drafter_dtype(target: Target) -> mx.Dtype:
    """The target's compute dtype; bfloat16 for a float16 target, whose range is too small (R14)."""
    dtype = target.compute_dtype
    return mx.bfloat16 if dtype == mx.float16 else dtype


def _dflash(target: TargetConfig, request: DrafterRequest) -> Candidate:
    if request.drafter is None:
        return Candidate(problem="no drafter was given")
    config = read_drafter_config(locate(request.drafter))
    check_pair(target, config)
    checked, source = check_source(config)
    return Candidate(
        lambda loaded: load_drafter_at(
            checked, loaded, drafter_dtype(loaded), request.drafter_bits, request.report, source
        ),
        config.path,
    )


def _mtp(target: TargetConfig, request: DrafterRequest) -> Candidate:
    if request.mtp is not None:
        source = open_folder(locate(request.mtp), target)
    elif (embedded := find_head(target)) is not None:
        source = embedded
    else:
        return Candidate(problem=absence(target))
    return Candidate(
        lambda loaded: load_head(source, loaded, drafter_dtype(loaded), request.mtp_hidden),
        source.where,
    )


def _head_given_as_drafter(request: DrafterRequest) -> DrafterRequest:
    """--drafter may name an MTP head's folder; only what is no DFlash checkpoint is looked at."""
    given = request.drafter
    if given is None or request.speculation not in ("auto", "mtp") or request.mtp is not None:
        return request
    try:
        directory = locate(given)
        classify(read_json(directory / "config.json"), directory / "config.json")
    except DflashError:
        if Path(given).is_dir() and is_head_folder(Path(given)):
            return replace(request, drafter=None, mtp=given)
    return request
