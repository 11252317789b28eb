"""`--show-settings`: each setting, its value in this call, and where that comes from."""

from __future__ import annotations

import typer

from ..options.settings import format_settings, settings_document
from ..text.terminal import print_document, print_text


def show_settings_of(context: typer.Context, *, as_json: bool) -> None:
    """A line a setting, or one document."""
    if as_json:
        print_document(settings_document(context))
    else:
        print_text(format_settings(context))
