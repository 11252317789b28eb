"""Where a request's target and drafter are: one rule for every command."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.checkpoint.hub import resolve_directory
from ..core.settings import user_path
from .bundled import paths as bundled


def locate(reference: str) -> Path:
    """The directory of a model reference: bundled:NAME, a directory, or a hub id."""
    return bundled.bundled_directory(reference) or resolve_directory(reference)


def find_drafter(model: str | None, drafter: str | None) -> str | None:
    """The drafter of a request: the one given, else MODEL/drafter, else the bundled target's."""
    if drafter is not None:
        return drafter
    if model is None or model == bundled.TARGET:
        return bundled.DRAFTER
    if "\0" in model:  # no path; locate says so
        return None
    directory = user_path(model)
    if os.path.realpath(directory) == str(bundled.ROOT / "target"):
        return bundled.DRAFTER
    beside = directory / "drafter"
    return str(beside) if os.path.isdir(beside) else None  # also where nobody may look
