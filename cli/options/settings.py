"""Settings as the defaults of options, and `--show-settings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from ...core.settings import KINDS, read_settings


def option_defaults(settable: Mapping[str, Sequence[str] | None]) -> dict[str, Any]:
    """Defaults of each command's options: what files and variables set (core/settings.py).

    settable: the keys that each command takes from there, None for all.
    """
    values = {key: setting.value for key, setting in read_settings().items()}
    return {
        command: {key: value for key, value in values.items() if keys is None or key in keys}
        for command, keys in settable.items()
    }


def format_settings(context: typer.Context) -> str:
    """A line a setting: its value in this call, and where that comes from."""
    known, lines = read_settings(), []
    for key in KINDS:
        if key not in context.params:
            continue
        given = context.get_parameter_source(key)
        source = getattr(given, "name", "")
        if source == "COMMANDLINE":
            where = "option"
        elif source == "DEFAULT_MAP" and key in known:
            where = known[key].source
        else:
            where = "default"
        value = context.params[key]
        shown = "-" if value is None else repr(value) if isinstance(value, str) else str(value)
        lines.append(f"{key:20} {shown:24} {where}")
    return "\n".join(lines)
