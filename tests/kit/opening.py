"""A target from a reference, in one call."""

from __future__ import annotations

from dflash_suite.core.checkpoint.hub import resolve_directory
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.loading.load import LoadedTarget, load_target


def open_target(reference: str, dtype_name: str = "auto") -> LoadedTarget:
    """resolve_directory, read_target_config and load_target."""
    return load_target(read_target_config(resolve_directory(reference)), dtype_name)
