"""Names of options in messages: what Python calls `top_p`, the command calls `--top-p`."""

from __future__ import annotations

from dataclasses import fields

from ...core.bench.options import BenchOptions
from ...core.options import GenerateOptions, LoadOptions, QuantizeOptions
from ...core.sampling_options import SamplingOptions

KINDS = (GenerateOptions, LoadOptions, QuantizeOptions, SamplingOptions, BenchOptions)
NAMES = frozenset(field.name for kind in KINDS for field in fields(kind))


def with_option_name(message: str) -> str:
    """A message that begins with the name of a field, beginning with the option's instead."""
    first, space, rest = message.partition(" ")
    return f"--{first.replace('_', '-')}{space}{rest}" if first in NAMES else message
