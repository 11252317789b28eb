"""dflash-suite: DFlash, DFlash2 and MTP speculative decoding on MLX, byte for byte.

Nothing heavy is imported here: `dflash --help` and `import dflash_suite` stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.options import GenerateOptions
    from .core.sampling_options import SamplingOptions
    from .drafters.engine import Completion, Engine, Request, load

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "Engine",
    "GenerateOptions",
    "Request",
    "SamplingOptions",
    "__version__",
    "load",
]
HOMES = {"GenerateOptions": "core.options", "SamplingOptions": "core.sampling_options"}


def __getattr__(name: str) -> Any:
    """Import a name on its first use, so that the package itself imports no mlx."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = importlib.import_module(f".{HOMES.get(name, 'drafters.engine')}", __name__)
    return getattr(home, name)
