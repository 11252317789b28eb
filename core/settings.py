"""Settings: dflash.toml files and DFLASH_* variables; the one module that reads the environment.

From weakest to strongest: defaults, `dflash.toml` in the user's configuration directory,
`dflash.toml` in the working directory, DFLASH_NAME variables, options of the command. Every key has
the name of its option (`max_tokens` for --max-tokens). An unknown key or a value of the wrong type
is a ConfigError that names the place.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConfigError, why_refused
from .json_values import EXPECTED, Kind, checked, wrong_value
from .regular_files import read_text

APPLICATION = "dflash"
FILE_NAME = "dflash.toml"
PREFIX = "DFLASH_"
NOWHERE = Path(os.devnull)
"""Stands for a home that nobody has: below a file nothing is there, and nothing can be made."""

KINDS: dict[str, Kind] = {
    "model": "text",
    "drafter": "text",
    "drafter_bits": "whole",
    "mtp": "text",
    "mtp_hidden": "text",
    "speculation": "text",
    "max_tokens": "whole",
    "block_size": "whole",
    "draft_tokens": "whole",
    "gate": "switch",
    "stored_probe": "switch",
    "stop": "texts",
    "system": "text",
    "reasoning": "text",
    "dtype": "text",
    "kernels": "text",
    "exact": "switch",
    "prefill_step_size": "whole",
    "temperature": "number",
    "top_k": "whole",
    "top_p": "number",
    "min_p": "number",
    "seed": "whole",
    "repetition_penalty": "number",
    "presence_penalty": "number",
    "frequency_penalty": "number",
    "penalty_window": "whole",
}
SWITCHES = {"1": True, "true": True, "on": True, "yes": True}
SWITCHES |= {"0": False, "false": False, "off": False, "no": False}


@dataclass(frozen=True)
class Setting:
    """A value, and where it stands: a file's path or a variable's name."""

    value: Any
    source: str


def cache_directory() -> Path:
    """The user's cache directory of the suite: $XDG_CACHE_HOME/dflash, else ~/.cache/dflash.

    As the XDG base directory specification asks, a relative XDG_CACHE_HOME is ignored.
    """
    return _user_directory("XDG_CACHE_HOME", ".cache")


def config_directory() -> Path:
    """The user's configuration directory: $XDG_CONFIG_HOME/dflash, else ~/.config/dflash."""
    return _user_directory("XDG_CONFIG_HOME", ".config")


def read_settings(directory: Path | None = None) -> dict[str, Setting]:
    """Everything that is set, by key; the strongest place wins. ConfigError for what is wrong.

    directory: where the second dflash.toml is looked for, by default the working directory.
    """
    settings: dict[str, Setting] = {}
    for file in (config_directory() / FILE_NAME, (directory or working_directory()) / FILE_NAME):
        settings |= _from_file(file)
    return settings | _from_environment(os.environ)


def _from_file(file: Path) -> dict[str, Setting]:
    try:
        text = read_text(file, "utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        said = why_refused(exc, "mend it, or take it away")
        raise ConfigError(f"{file} cannot be read: {said}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file} cannot be read: {exc}") from exc
    import tomli  # only where there is a file: every command starts here

    try:
        values = tomli.loads(text)
    except (ValueError, RecursionError) as exc:  # not TOML, nested too deep, thousands of digits
        raise ConfigError(f"{file} is not TOML: {exc}") from exc
    for key in values:
        _require_known(key, key, KINDS, str(file))
    return {
        key: Setting(checked(KINDS[key], f"{file}: '{key}'", value), str(file))
        for key, value in values.items()
    }


def _from_environment(environment: Mapping[str, str]) -> dict[str, Setting]:
    known = {PREFIX + key.upper(): key for key in KINDS}
    settings = {}
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        _require_known(name, name, known, "the environment")
        value = _parsed(known[name], environment[name], name)
        settings[known[name]] = Setting(value, name)
    return settings


def _require_known(key: str, shown: str, known: Mapping[str, Any], place: str) -> None:
    if key in known:
        return
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"{place} sets {shown}, which no command knows; {hint}")


def _parsed(key: str, text: str, name: str) -> Any:
    """A variable's text as the key's type; a variable holds one stop text."""
    kind = KINDS[key]
    try:
        if kind == "whole":
            return int(text)
        if kind == "number":
            return checked(kind, name, float(text))
        if kind == "switch":
            return SWITCHES[text.strip().lower()]
    except (KeyError, ValueError):
        raise wrong_value(name, text, EXPECTED[kind], ConfigError) from None
    return [text] if kind == "texts" else text


def _user_directory(variable: str, fallback: str) -> Path:
    stated = Path(os.environ.get(variable) or "")
    return (stated if stated.is_absolute() else user_path("~") / fallback) / APPLICATION


def working_directory() -> Path:
    """The working directory; a relative path where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def user_path(text: str) -> Path:
    """A path that a user wrote, `~` expanded; below NOWHERE where there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # HOME is not set, and the user has no entry in the list of users
        return NOWHERE / Path(text).name
