"""Sampling options as fields of a JSON object, by the names of SamplingOptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ...core.errors import OptionError
from ...core.json_values import Kind, checked, is_number, wrong_value
from ...core.sampling_options import SamplingOptions

SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingOptions))
WHOLE_FIELDS = ("top_k", "seed", "penalty_window")
MOST_ID_DIGITS = 18


def sampling_from(fields: Mapping[str, Any], defaults: SamplingOptions) -> SamplingOptions:
    """The options with the fields that are given; OptionError for a value that no run could use."""
    values = asdict(defaults)
    for name in SAMPLING_FIELDS:
        if name not in fields:
            continue
        value = fields[name]
        if name == "logit_bias":
            values[name] = _bias(value)
        else:
            kind: Kind = "whole" if name in WHOLE_FIELDS else "number"
            values[name] = checked(kind, name, value, OptionError)
    return SamplingOptions(**values)


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    """{"token id": addend} as pairs."""
    pairs = value.items() if isinstance(value, dict) else None
    if pairs is None or not all(_is_id(token) and is_number(bias) for token, bias in pairs):
        raise wrong_value("logit_bias", value, "an object of token ids and numbers", OptionError)
    return tuple((int(token), float(bias)) for token, bias in pairs)


def _is_id(text: str) -> bool:
    """Digits of an id that any vocabulary could have."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_ID_DIGITS
