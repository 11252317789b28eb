"""dflash-suite: DFlash, DFlash2 and MTP speculative decoding on MLX, byte for byte.

`load` gives an Engine; a Request is started for its events, or completed in one call. Nothing heavy
is imported here: `dflash --help` and `import dflash_suite` stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.errors import (
        CacheError,
        CheckpointError,
        ConfigError,
        DeviceError,
        DflashError,
        DrafterMismatch,
        DraftError,
        ExactUnavailable,
        ExternalMask,
        ForwardMismatch,
        LogitsNotFinite,
        ModelNotFound,
        OptionError,
        OutOfRoom,
        OutputExists,
        PromptError,
        PromptTooLong,
        QueueFull,
        ResourceError,
        RollbackError,
        RouteUnavailable,
        SlabError,
        SlabWriteError,
        TensorError,
        UnsupportedCache,
        UnsupportedModel,
        WorkerError,
        WorkerStopped,
        WrongThread,
    )
    from .core.options import (
        GenerateOptions,
        LoadOptions,
    )
    from .core.report import (
        Report,
    )
    from .core.sampling_options import (
        SamplingOptions,
    )
    from .core.stats import (
        Chunk,
        Event,
        Finished,
        GenerationStats,
        PrefillProgress,
    )
    from .drafters.engine import (
        Answer,
        Engine,
        load,
        take_turns,
    )
    from .drafters.request import (
        Completion,
        Request,
    )
    from .drafters.routes import (
        Route,
    )
    from .drafters.worker.job import (
        Job,
        Started,
    )
    from .drafters.worker.worker import (
        Worker,
        WorkerOptions,
        WorkerStatus,
    )

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "CacheError",
    "CheckpointError",
    "Chunk",
    "Completion",
    "ConfigError",
    "DeviceError",
    "DflashError",
    "DraftError",
    "DrafterMismatch",
    "Engine",
    "Event",
    "ExactUnavailable",
    "ExternalMask",
    "Finished",
    "GenerateOptions",
    "GenerationStats",
    "Job",
    "LoadOptions",
    "LogitsNotFinite",
    "ModelNotFound",
    "OptionError",
    "OutOfRoom",
    "OutputExists",
    "PrefillProgress",
    "ForwardMismatch",
    "PromptError",
    "PromptTooLong",
    "QueueFull",
    "Report",
    "Request",
    "ResourceError",
    "RollbackError",
    "Route",
    "RouteUnavailable",
    "SamplingOptions",
    "SlabError",
    "SlabWriteError",
    "Started",
    "TensorError",
    "UnsupportedCache",
    "UnsupportedModel",
    "Worker",
    "WorkerError",
    "WorkerOptions",
    "WorkerStatus",
    "WorkerStopped",
    "WrongThread",
    "__version__",
    "load",
    "take_turns",
]
HOMES = {
    "core.errors": (
        "CacheError",
        "CheckpointError",
        "ConfigError",
        "DeviceError",
        "DflashError",
        "DraftError",
        "DrafterMismatch",
        "ExactUnavailable",
        "ExternalMask",
        "LogitsNotFinite",
        "ModelNotFound",
        "OptionError",
        "OutOfRoom",
        "OutputExists",
        "ForwardMismatch",
        "PromptError",
        "PromptTooLong",
        "QueueFull",
        "ResourceError",
        "RollbackError",
        "RouteUnavailable",
        "SlabError",
        "SlabWriteError",
        "TensorError",
        "UnsupportedCache",
        "UnsupportedModel",
        "WorkerError",
        "WorkerStopped",
        "WrongThread",
    ),
    "core.options": (
        "GenerateOptions",
        "LoadOptions",
    ),
    "core.report": ("Report",),
    "core.sampling_options": ("SamplingOptions",),
    "core.stats": (
        "Chunk",
        "Event",
        "Finished",
        "GenerationStats",
        "PrefillProgress",
    ),
    "drafters.engine": ("Answer", "Engine", "load", "take_turns"),
    "drafters.request": ("Completion", "Request"),
    "drafters.routes": ("Route",),
    "drafters.worker.job": ("Job", "Started"),
    "drafters.worker.worker": ("Worker", "WorkerOptions", "WorkerStatus"),
}
"""Module -> the public names that it defines; a test holds them equal to `__all__`."""


def __getattr__(name: str) -> Any:
    """Import a name on its first use, so that the package itself imports no mlx."""
    import importlib

    for home, names in HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
