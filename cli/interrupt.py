"""What a Ctrl-C looks like while modules are imported, what SIGTERM does, and an end that waits."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHOW_CURSOR = "\x1b[?25h"


def is_interrupt(exc: BaseException) -> bool:
    """True for a KeyboardInterrupt, and for the ImportError that a compiled module makes of one."""
    return isinstance(exc, KeyboardInterrupt) or (
        isinstance(exc, ImportError) and isinstance(exc.__cause__, KeyboardInterrupt)
    )


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Within it SIGTERM ends the command as an exception does, so that what it holds is given back:
    a hidden cursor, a half-written file. Exit code 143, as shells count."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def end(number: int, frame: object) -> None:
        heard.append(number)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        if not heard:
            raise
        if sys.stderr is not None and sys.stderr.isatty():  # in the very moment of hiding it
            sys.stderr.write(SHOW_CURSOR)
            sys.stderr.flush()
        raise SystemExit(128 + heard[0]) from None  # whatever a library made of it on the way
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stopping(wanted: bool) -> Iterator[threading.Event]:
    """Within it Ctrl-C sets the event, for whoever looks at it between two steps; a second one is
    a KeyboardInterrupt. Nothing changes where it is not `wanted`."""
    asked = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
