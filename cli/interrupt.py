"""What a Ctrl-C looks like while modules are imported."""

from __future__ import annotations


def is_interrupt(exc: BaseException) -> bool:
    """True for a KeyboardInterrupt, and for the ImportError that a compiled module makes of one."""
    return isinstance(exc, KeyboardInterrupt) or (
        isinstance(exc, ImportError) and isinstance(exc.__cause__, KeyboardInterrupt)
    )
