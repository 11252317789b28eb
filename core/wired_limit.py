"""The memory that macOS keeps resident for a GPU: raised while models are loaded and run.

Without it the system may page weights out between two passes, and a large target then decodes many
times slower. mlx-lm raises it too, to the device's own recommendation, and puts it back
(`mlx_lm.generate.wired_limit`). The limit belongs to the process, so uses of it are counted here:
what the first one found is put back when the last one ends, in whichever order they end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import mlx.core as mx

P = ParamSpec("P")
R = TypeVar("R")

NEARLY_ALL = 0.9
"""Share of the recommendation above which a model may not stay resident, as mlx-lm has it."""


class WiredMemory(Protocol):
    """A device whose resident memory has a limit."""

    def recommended_bytes(self) -> int | None:
        """What the device recommends as a limit; None where there is nothing to set."""

    def set_limit(self, limit_bytes: int) -> int:
        """Set the limit; returns the one before."""

    def synchronize(self) -> None:
        """Wait for the work that runs under the limit."""


class MetalMemory:
    """MLX's, which has an effect on Metal alone."""

    def recommended_bytes(self) -> int | None:
        """None off Metal."""
        if mx.default_device() != mx.gpu or not mx.metal.is_available():
            return None
        info: dict[str, Any] = mx.device_info()
        stated = info.get("max_recommended_working_set_size")
        return int(stated) if stated else None

    def set_limit(self, limit_bytes: int) -> int:
        """In bytes."""
        return int(mx.set_wired_limit(limit_bytes))

    def synchronize(self) -> None:
        """MLX asks for it: the limit must not change under running work."""
        mx.synchronize()


class WiredLimit:
    """Counts who needs the limit raised; one object for a device."""

    def __init__(self, memory: WiredMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._users = 0
        self._found_bytes: int | None = None

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Within it the limit is the recommended one. Also across errors, and where a generator
        holds it that is closed later than others that began after it."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def note(self, model_bytes: int) -> str | None:
        """What to say of a model that is nearly as large as the recommendation, or larger."""
        recommended = self._memory.recommended_bytes()
        if recommended is None or model_bytes <= NEARLY_ALL * recommended:
            return None
        return (
            f"the target takes {model_bytes / 1e9:.1f} GB of the {recommended / 1e9:.1f} GB that "
            "this Mac recommends to keep resident, so that parts of it may be paged out and "
            "decoding be slow; a quantized copy is smaller, and "
            "`sudo sysctl iogpu.wired_limit_mb=N` raises the bound on macOS 15 and later"
        )

    def _enter(self) -> None:
        with self._lock:
            if self._users == 0:
                recommended = self._memory.recommended_bytes()
                if recommended is not None:
                    self._found_bytes = self._memory.set_limit(recommended)
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._found_bytes is not None:
                self._memory.synchronize()
                self._memory.set_limit(self._found_bytes)
                self._found_bytes = None


@cache
def wired_limit() -> WiredLimit:
    """That of this process, since the limit itself is."""
    return WiredLimit(MetalMemory())


def while_raised(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run with the process's limit raised: for what loads models."""

    @wraps(function)
    def raised(*args: P.args, **kwargs: P.kwargs) -> R:
        with wired_limit().raised():
            return function(*args, **kwargs)

    return raised
