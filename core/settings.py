"""The one module that reads environment variables."""

from __future__ import annotations

import os
from pathlib import Path

APPLICATION = "dflash"


def cache_directory() -> Path:
    """The user's cache directory of the suite: $XDG_CACHE_HOME/dflash, else ~/.cache/dflash.

    As the XDG base directory specification asks, a relative XDG_CACHE_HOME is ignored.
    """
    stated = Path(os.environ.get("XDG_CACHE_HOME") or "")
    base = stated if stated.is_absolute() else Path.home() / ".cache"
    return base / APPLICATION
