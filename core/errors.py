"""Every error the suite raises on purpose.

DflashError                 caught once, by the command: message on stderr, exit code 1
├── OptionError             a value that no run could use (the command exits with 2)
├── ModelNotFound           no such directory, hub id or file
├── CheckpointError         a file that is there but cannot be used
│   ├── ConfigError         config.json: a key missing, of the wrong type, or contradictory
│   ├── TensorError         safetensors: header, names, shapes or dtypes
│   ├── SlabError           a slab that is damaged, stale or foreign, or cannot be made
│   │   └── SlabWriteError  no place took it
│   └── UnsupportedModel    a kind of checkpoint that the suite recognises and does not run
├── DrafterMismatch         a good drafter, for another target
├── RouteUnavailable        an explicit --speculation value that cannot run
├── OutputExists            a file of someone else's stands where one would be written
├── PromptError             nothing to decode, or a text that cannot be encoded
│   └── PromptTooLong       more tokens than the target has positions
├── ForwardMismatch         the suite's forward differs from mlx-lm's own
├── LogitsNotFinite         the target computes no numbers
├── DraftError              a drafter that broke the protocol
├── DeviceError             the GPU, its driver or its compiler failed, or lacks what a kernel needs
├── ResourceError           the operating system refused a file, a folder or memory
├── ExactUnavailable        no way was found here to make a row independent of the others
├── WrongThread             models used by a thread or a process that did not load them
├── OutOfRoom               a request whose caches do not fit into memory
├── WorkerError             the thread that owns the models cannot take a request
│   ├── QueueFull           as many wait as may
│   └── WorkerStopped       it has ended, or is about to
└── CacheError              a cache that cannot do what was asked
    ├── UnsupportedCache    Hybrid expected and KV found, or the reverse
    ├── ExternalMask        the target builds its own causal mask
    └── RollbackError       a count, tape or offset that does not fit; nothing was changed
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class DflashError(Exception):
    """Base of the tree; `str(error)` says what was found, expected and what to do."""


class OptionError(DflashError):
    """A value that no run could use."""


class ModelNotFound(DflashError):
    """No such directory, hub id or file."""


class CheckpointError(DflashError):
    """A file that is there but cannot be used."""


class ConfigError(CheckpointError):
    """config.json: a key missing, of the wrong type, or contradictory."""


class TensorError(CheckpointError):
    """safetensors: header, names, shapes or dtypes."""


class SlabError(CheckpointError):
    """A slab that is damaged, stale or foreign, or cannot be made."""


class SlabWriteError(SlabError):
    """No place took the slab; nothing was changed."""


class UnsupportedModel(CheckpointError):
    """A kind of checkpoint that the suite recognises and does not run."""


class DrafterMismatch(DflashError):
    """A good drafter, for another target."""


class RouteUnavailable(DflashError):
    """An explicit --speculation value that cannot run."""


class OutputExists(DflashError):
    """A file of someone else's stands where one would be written."""


class PromptError(DflashError):
    """Nothing to decode, or a text that cannot be encoded."""


class PromptTooLong(PromptError):
    """More tokens than the target has positions.

    tokens: of the prompt; positions: of the target.
    """

    def __init__(self, tokens: int, positions: int) -> None:
        super().__init__(
            f"prompt is too long: {tokens} tokens > {positions} maximum; this target's maximum "
            f"context length is {positions} tokens, please reduce the length of the messages"
        )
        self.tokens, self.positions = tokens, positions


class ForwardMismatch(DflashError):
    """The suite's forward differs from mlx-lm's own."""


class LogitsNotFinite(DflashError):
    """The target computes NaN or infinity: damaged weights, or a dtype that is too narrow."""


class DraftError(DflashError):
    """A drafter broke the protocol: what it proposed is no vector of ids."""


class DeviceError(DflashError):
    """The GPU, its driver or its compiler failed, or lacks what one of our kernels needs."""


class ResourceError(DflashError):
    """The operating system refused a file, a folder or memory."""


class ExactUnavailable(DflashError):
    """No way was found here to make a row independent of the other rows of its pass."""


class WrongThread(DflashError):
    """Models used by a thread or a process that did not load them."""


class OutOfRoom(DflashError):
    """A request whose caches do not fit into memory.

    can_wait: they would, once others are over.
    """

    def __init__(self, message: str, *, can_wait: bool = False) -> None:
        super().__init__(message)
        self.can_wait = can_wait


class WorkerError(DflashError):
    """The thread that owns the models cannot take a request."""


class QueueFull(WorkerError):
    """As many requests wait as may; try again later."""


class WorkerStopped(WorkerError):
    """The worker has ended, or is about to."""


class CacheError(DflashError):
    """A cache that cannot do what was asked."""


class UnsupportedCache(CacheError):
    """Hybrid expected and KV found, or the reverse."""


class ExternalMask(CacheError):
    """The target builds its own causal mask."""


class RollbackError(CacheError):
    """A count, tape or offset that does not fit; nothing was changed."""


@contextmanager
def resource_errors() -> Iterator[None]:
    """What the operating system refuses in here, as a ResourceError; a decorator too.

    A reader of our output that went away is left to the command.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise refused(exc) from exc
    except MemoryError as exc:
        raise ResourceError(
            f"there is not enough memory ({described(exc)}); take a smaller or quantized model, or "
            "raise the limit of this process"
        ) from exc


def refused(exc: OSError) -> ResourceError:
    """The error for what the operating system refused, with its name where it has one."""
    place = os.fsdecode(exc.filename) if isinstance(exc.filename, str | bytes) else None
    said = why_refused(exc, "check that it is there and can be used")
    return ResourceError(f"{place}: {said}" if place else said)


def why_refused(exc: OSError, advice: str) -> str:
    """What the operating system said, and what to do: `advice` where it has nothing better."""
    said = " ".join((exc.strerror or described(exc)).split())
    return f"{said}; {HINTS.get(exc.errno or 0, advice)}"


HINTS = {
    errno.EACCES: "check its owner and its permissions",
    errno.EPERM: "check its owner and its permissions",
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk",
    errno.EROFS: "that disk takes no writes",
    errno.EMFILE: "this process may open no more files (ulimit -n)",
}
"""errno -> what to do."""


def described(exc: BaseException, names: int = 10) -> str:
    """Another library's exception in a message of ours: its class, and what it says, on one line.

    Of the names that it lists one a line, at most `names` stay. It may say nothing at all, and it
    may repeat a whole file.
    """
    lines = [line.strip().rstrip(",.") for line in str(exc).splitlines() if line.strip()]
    if not lines:
        return type(exc).__name__
    rest = len(lines) - 1 - names
    said = f"{lines[0]} {', '.join(lines[1 : names + 1])}".strip()
    said = f"{said[:LONGEST_DESCRIBED]}..." if len(said) > LONGEST_DESCRIBED else said
    return f"{type(exc).__name__}: {said}" + (f" and {rest} more" if rest > 0 else "")


LONGEST_DESCRIBED = 1000
"""Characters of another library's message that one of ours repeats."""
