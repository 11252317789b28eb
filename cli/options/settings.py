"""Settings as the defaults of options, and `--show-settings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from ...core.errors import ConfigError
from ...core.settings import (
    FILE_NAME,
    KINDS,
    Setting,
    config_directory,
    read_settings,
    setting_notes,
    untrusted,
)
from ..text.footer import print_note

ON_LINE = "COMMANDLINE"
"""Click's name for an option that stands on the command line."""


OPTIONS = {
    "model": ("--model", "-m"),
    "drafter": ("--drafter", "-d"),
    "mtp": ("--mtp",),
    "adapter_path": ("--adapter-path",),
}
QUIET = ("--quiet", "-q")


def option_defaults(
    settable: Mapping[str, Sequence[str] | None], arguments: Sequence[str] = (), *, trusted: bool
) -> dict[str, Any]:
    """Defaults of each command's options: what files and variables set (core/settings.py).

    settable: the keys that each command takes from there, None for all; arguments: the command
    line; trusted: whether the file of the working directory may choose models. Raises ConfigError
    where it does and may not.
    """
    settings = read_settings()
    taken = settable.get(arguments[0], ()) if arguments else ()
    acting = {key: one for key, one in settings.items() if taken is None or key in taken}
    if not trusted:
        _require_trust(acting, arguments)
    if not set(QUIET) & set(arguments):
        for note in setting_notes(acting):
            print_note(note)
    values = {key: setting.value for key, setting in settings.items()}
    return {
        command: {key: value for key, value in values.items() if keys is None or key in keys}
        for command, keys in settable.items()
    }


def _require_trust(settings: Mapping[str, Setting], arguments: Sequence[str]) -> None:
    for key in untrusted(settings):
        names = OPTIONS[key]
        if not any(one in names or one.startswith(f"{names[0]}=") for one in arguments):
            raise ConfigError(
                f"{settings[key].source} sets {key} to {settings[key].value!r}, and a file of the "
                "working directory may choose what is loaded only with --trust-settings; give "
                f"that, or {names[0]}, or move the line to {config_directory() / FILE_NAME}"
            )


def given_options(context: typer.Context, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the options that stand on the command line, as the command names them."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if getattr(source, "name", "") == ON_LINE]
    return tuple(f"--{name.replace('_', '-')}" for name in given)


def setting_sources(context: typer.Context) -> dict[str, tuple[Any, str]]:
    """Each setting's value in this call, and where that comes from."""
    known = read_settings()
    found: dict[str, tuple[Any, str]] = {}
    for key in KINDS:
        if key not in context.params:
            continue
        source = getattr(context.get_parameter_source(key), "name", "")
        where = "option" if source == ON_LINE else "default"
        if source == "DEFAULT_MAP" and key in known:
            where = known[key].source
        found[key] = context.params[key], where
    return found


def format_settings(context: typer.Context) -> str:
    """A line a setting."""
    lines = []
    for key, (value, where) in setting_sources(context).items():
        shown = "-" if value is None else repr(value) if isinstance(value, str) else str(value)
        lines.append(f"{key:20} {shown:24} {where}")
    return "\n".join(lines)


def settings_document(context: typer.Context) -> dict[str, Any]:
    """The same as a JSON document."""
    found = setting_sources(context)
    settings = {key: {"value": value, "source": where} for key, (value, where) in found.items()}
    return {"schema": "dflash.settings/1", "settings": settings}
