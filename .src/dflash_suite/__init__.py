"""dflash-suite: DFlash, DFlash2 and MTP speculative decoding on MLX, byte for byte.

Nothing heavy is imported here: `dflash --help` and `import dflash_suite` stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .drafters.pair import load_pair as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import `load` on first use, so that the package itself imports no mlx."""
    if name == "load":
        from .drafters.pair import load_pair

        return load_pair
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
