"""JSON that others wrote: read with clear errors, and looked up by type.

Every error names the place (a file and a key, or a field), what was found there and what was
expected. True and false are not numbers, and neither are NaN and the infinities, though Python's
reader takes them. A text that is nested too deep, or a number of thousands of digits, is an error
like any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar

from .errors import ConfigError, ModelNotFound, why_refused
from .regular_files import read_text

E = TypeVar("E", bound=Exception)
Kind = Literal["text", "whole", "number", "switch", "texts", "object"]
EXPECTED: dict[Kind, str] = {
    "text": "a text",
    "whole": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "texts": "a list of texts",
    "object": "an object",
}
LARGEST_SHOWN = 10**40
AGAIN = "fetch it again"
LONGEST_SHOWN = 400
"""Characters of a value that a message repeats."""


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says. Raises ValueError, whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_object(
    text: str | bytes, where: str, error: type[Exception], advice: str = ""
) -> dict[str, Any]:
    """The object that a JSON text holds; else `error`: `where`, what is wrong, and `advice`."""
    try:
        value = parse_json(text)
    except ValueError as exc:  # also a number of thousands of digits
        raise error(f"{where} is not JSON ({exc}){advice}") from exc
    if not isinstance(value, dict):
        raise error(f"{where} holds a {type(value).__name__}, expected a JSON object{advice}")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a checkpoint's file.

    Raises ModelNotFound where there is no such file, ConfigError where it is not a JSON object.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise ModelNotFound(
            f"{path} does not exist: give the directory that holds config.json and the "
            "safetensors files, or a hub id"
        ) from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {why_refused(exc, AGAIN)}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} cannot be read ({exc}); {AGAIN}") from exc
    return parse_object(text, str(path), ConfigError, "; fetch the file again or restore it")


def is_whole(value: object) -> TypeGuard[int]:
    """A whole number, and not true or false, which Python counts as 1 and 0."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """A number that a float can hold, and is finite."""
    try:
        return (is_whole(value) or isinstance(value, float)) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def are_whole(value: object) -> TypeGuard[list[int]]:
    """A list of whole numbers."""
    return isinstance(value, list) and all(map(is_whole, value))


def are_texts(value: object) -> TypeGuard[list[str]]:
    """A list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


IS: dict[Kind, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "whole": is_whole,
    "number": is_number,
    "switch": lambda value: isinstance(value, bool),
    "texts": are_texts,
    "object": lambda value: isinstance(value, dict),
}


def checked(kind: Kind, where: str, value: Any, error: type[Exception] = ConfigError) -> Any:
    """The value as it stands, where it is of that kind; else `error`."""
    if not IS[kind](value):
        is_unfit = kind == "number" and (is_whole(value) or isinstance(value, float))
        expected = "a finite number" if is_unfit else EXPECTED[kind]
        raise wrong_value(where, value, expected, error)
    return value


def bounded(
    where: str, value: object, least: int, most: int, error: type[Exception] = ConfigError
) -> int:
    """A whole number of least..most; else `error`."""
    if not is_whole(value) or not least <= value <= most:
        raise wrong_value(where, value, f"{least}..{most}", error)
    return value


def wrong_value(where: str, value: object, expected: str, error: type[E]) -> E:
    """The error for a value that is not what its place asks for."""
    return error(f"{where} is {shown(value)}, expected {expected}")


def shown(value: object) -> str:
    """A value as a message repeats it: no more than its beginning, of a number all or nothing."""
    if is_whole(value) and abs(value) >= LARGEST_SHOWN:
        return f"{type(value).__name__}, too large to be shown"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested deep, or a number of thousands of digits
        return f"{type(value).__name__}, too large to be shown"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


@dataclass(frozen=True)
class Fields:
    """Typed look-up of one key in nested places of a file, the first place that has it wins.

    `places` are (label, mapping) pairs, e.g. ("dflash_config.", {...}), ("", {...}).
    """

    path: Path
    places: tuple[tuple[str, Mapping[str, Any]], ...]

    def raw(self, key: str) -> tuple[str, Any] | None:
        """(label, value) of the first place where `key` is set to something, or None."""
        for label, mapping in self.places:
            if mapping.get(key) is not None:
                return label + key, mapping[key]
        return None

    def require(self, key: str) -> tuple[str, Any]:
        """As raw, but a missing key is a ConfigError that names it."""
        found = self.raw(key)
        if found is None:
            names = " or ".join(f"'{label}{key}'" for label, _ in self.places)
            raise ConfigError(f"{self.path}: {names} is missing; it has no safe default")
        return found

    def require_agreement(self, key: str) -> None:
        """ConfigError where two places state `key` differently: one of them is wrong."""
        stated = {label + key: m[key] for label, m in self.places if m.get(key) is not None}
        if len(stated) > 1 and len({repr(value) for value in map(_plain, stated.values())}) > 1:
            both = " and ".join(f"'{label}' is {shown(value)}" for label, value in stated.items())
            raise ConfigError(f"{self.path}: {both}; they contradict each other")

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        if default is not None and self.raw(key) is None:
            return default
        label, value = self.require(key)
        whole: int = checked("whole", f"{self.path}: '{label}'", value)
        if whole < minimum:
            raise self.wrong_type(label, value, f"at least {minimum}")
        return whole

    def number(self, key: str, default: float | None = None, minimum: float | None = None) -> float:
        """A finite number, at least `minimum` where one is given."""
        if default is not None and self.raw(key) is None:
            return default
        label, value = self.require(key)
        checked("number", f"{self.path}: '{label}'", value)
        if minimum is not None and value < minimum:
            raise self.wrong_type(label, value, f"a number of at least {minimum:g}")
        return float(value)

    def boolean(self, key: str) -> bool | None:
        """True, False, or None where the key is absent."""
        found = self.raw(key)
        if found is None:
            return None
        label, value = found
        switch: bool = checked("switch", f"{self.path}: '{label}'", value)
        return switch

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, in the file's order."""
        label, value = self.require(key)
        if not are_whole(value):
            raise self.wrong_type(label, value, "a list of whole numbers")
        return tuple(value)

    def wrong_type(self, label: str, value: object, expected: str) -> ConfigError:
        """The error for a value of the wrong type."""
        return wrong_value(f"{self.path}: '{label}'", value, expected, ConfigError)


def _plain(value: object) -> object:
    """1e7 and 10000000 are the same number."""
    return float(value) if is_number(value) else value


def text_lines(text: str) -> list[str]:
    """The lines of a text file: they end at \\n and \\r\\n alone, since a JSON text may hold every
    other character that Python takes for the end of a line, and so may a prompt."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
