"""The table of methods. A new way to draft is a module beside this one and a row here."""

from __future__ import annotations

from ...core.options import Speculation
from .dflash import DFLASH
from .method import Method
from .mtp import MTP

METHODS: tuple[Method, ...] = (DFLASH, MTP)
"""In the order in which `auto` tries them."""


def methods_for(speculation: Speculation) -> tuple[Method, ...]:
    """The methods that a --speculation value tries, in order; none of them for `none`."""
    if speculation == "auto":
        return METHODS
    return tuple(method for method in METHODS if method.speculation == speculation)


def method_of(name: str) -> Method | None:
    """The method of a drafter, by its name (`dflash2`); None for plain decoding."""
    return next((method for method in METHODS if method.owns(name)), None)
