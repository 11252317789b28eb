"""Settings: dflash.toml files and DFLASH_* variables; the one module that reads the environment.

From weakest to strongest: defaults, `dflash.toml` in the user's configuration directory,
`dflash.toml` in the working directory, DFLASH_NAME variables, options of the command. Every key has
the name of its option (`max_tokens` or `max-tokens` for --max-tokens). An unknown key or a value of
the wrong type is a ConfigError that names the place; a variable that no command knows may be
another tool's, and is noted. What a file of the working directory says of models must be trusted,
since anybody may have made that file.
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

NEED_TRUST = ("model", "drafter", "mtp", "adapter_path")
"""Keys that choose what is loaded."""

KINDS: dict[str, Kind] = {
    "model": "text",
    "drafter": "text",
    "drafter_bits": "whole",
    "mtp": "text",
    "adapter_path": "text",
    "mtp_hidden": "text",
    "mtp_norms": "text",
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
    settings = _from_file(config_directory() / FILE_NAME)
    settings |= _from_file(working_file(directory))
    return settings | _from_environment(os.environ)


def working_file(directory: Path | None = None) -> Path:
    """The dflash.toml of a directory, by default the working directory."""
    return (directory or working_directory()) / FILE_NAME


def untrusted(settings: Mapping[str, Setting]) -> list[str]:
    """Keys that choose what is loaded, and that the file of the working directory has set."""
    source = str(working_file())
    is_users = source == str(config_directory() / FILE_NAME)
    found = [key for key in NEED_TRUST if key in settings and settings[key].source == source]
    return [] if is_users else found


def setting_notes(settings: Mapping[str, Setting]) -> list[str]:
    """What to say of where settings came from: the file of the working directory, where it has set
    something, and variables that no command knows."""
    source = str(working_file())
    keys = [key for key, setting in settings.items() if setting.source == source]
    notes = [f"{source} sets {', '.join(keys)}"] if keys else []
    unknown = [_unknown(name, _variables()) for name in _own_variables(os.environ)
               if name not in _variables()]  # fmt: skip
    return [*notes, *(f"the environment sets {one}; it is left out" for one in unknown)]


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
    found: dict[str, Setting] = {}
    for written, value in values.items():
        key = written.replace("-", "_")
        if key not in KINDS:
            raise ConfigError(f"{file} sets {_unknown(written, KINDS)}")
        if key in found:
            raise ConfigError(f"{file} sets {key} twice, with a hyphen and without; keep one")
        found[key] = Setting(checked(KINDS[key], f"{file}: '{written}'", value), str(file))
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, Setting]:
    known = _variables()
    named = [name for name in _own_variables(environment) if name in known]
    return {
        known[name]: Setting(_parsed(known[name], environment[name], name), name) for name in named
    }


def _variables() -> dict[str, str]:
    """Variable -> key."""
    return {PREFIX + key.upper(): key for key in KINDS}


def _own_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables with the suite's prefix that are set: an empty one is not."""
    return sorted(name for name, text in environment.items() if name.startswith(PREFIX) and text)


def _unknown(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"{key}, which no command knows; {hint}"


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


def temporary_directory() -> Path:
    """The folder for temporary files as MLX finds it, whether it is there or not."""
    names = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
    return Path(next((os.environ[name] for name in names if os.environ.get(name)), "/tmp"))


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
