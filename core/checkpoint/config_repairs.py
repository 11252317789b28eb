"""What mlx-lm would read from a target's config.json without a word and wrongly.

mlx-lm looks for some keys in one place only and otherwise takes a default: another rope base, no
rope scaling. Each such config is either repaired, through the overrides that mlx-lm's load_model
takes, or refused; what was done stands in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .families import Family


@dataclass(frozen=True)
class Repairs:
    """overrides: what load_model's model_config gets; notes: one line each, for the user."""

    overrides: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_repairs(family: Family, file: Path, raw: Mapping[str, Any]) -> Repairs:
    """What must change before mlx-lm reads this config; ConfigError where that is not clear."""
    text = raw.get("text_config") or raw
    _check_layer_types(file, family, text)
    _check_window(file, family, text)
    changes, notes = _rope_changes(file, family, text)
    overrides: dict[str, Any] = {}
    if family.model_type != raw.get("model_type"):
        overrides["model_type"] = family.model_type
    if changes:
        overrides |= {"text_config": {**text, **changes}} if text is not raw else changes
    if family.wraps_vocab:
        overrides |= _wrapped_vocab(file, raw, text)
    return Repairs(overrides, tuple(notes))


def _rope_changes(
    file: Path, family: Family, text: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    nested, flat = text.get("rope_parameters"), text.get("rope_theta")
    if nested is not None and not isinstance(nested, dict):
        raise ConfigError(f"{file}: 'rope_parameters' is {nested!r}, expected an object")
    if family.rope == "layer types":
        return _rope_by_layer_type(file, nested, flat)
    inner = (nested or {}).get("rope_theta")
    if inner is not None and flat is not None and inner != flat:
        raise ConfigError(
            f"{file}: 'rope_theta' is {flat} and 'rope_parameters.rope_theta' is {inner}; one of "
            "them is wrong: fetch the file again or correct it"
        )
    if inner is None and flat is None:
        if family.needs_theta:
            raise ConfigError(
                f"{file}: 'rope_parameters.rope_theta' or 'rope_theta' is missing; mlx-lm would "
                "take a default that this model was not trained with"
            )
        return {}, []
    if family.rope == "nested" and inner is None:
        return _nest(file, text, nested or {}, flat)
    if family.rope == "flat" and flat is None:
        return _flatten(file, family, text, nested or {})
    return {}, []


def _nest(
    file: Path, text: Mapping[str, Any], nested: Mapping[str, Any], theta: Any
) -> tuple[dict[str, Any], list[str]]:
    """Flat keys into rope_parameters: mlx-lm would otherwise use a base of 100000."""
    built: dict[str, Any] = {"rope_type": "default"}
    if text.get("partial_rotary_factor") is not None:
        built["partial_rotary_factor"] = text["partial_rotary_factor"]
    built |= {**(text.get("rope_scaling") or {}), **nested, "rope_theta": theta}
    note = (
        f"{file} states rope_theta {theta} outside rope_parameters, where mlx-lm does not look; "
        "it was passed on as rope_parameters"
    )
    return {"rope_parameters": built}, [note]


def _flatten(
    file: Path, family: Family, text: Mapping[str, Any], nested: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """rope_parameters into flat keys, for families where mlx-lm reads nothing else."""
    changes: dict[str, Any] = {"rope_theta": nested["rope_theta"]}
    kind = nested.get("rope_type") or nested.get("type") or "default"
    if kind != "default" and text.get("rope_scaling") is None:
        changes["rope_scaling"] = dict(nested)
    for key in family.flat_rope_keys:
        if nested.get(key) is not None:
            changes[key] = nested[key]
    note = (
        f"{file} states rope_theta {nested['rope_theta']} inside rope_parameters, where mlx-lm "
        f"does not look for {family.model_type}; it was passed on as flat keys"
    )
    return changes, [note]


def _rope_by_layer_type(
    file: Path, nested: Mapping[str, Any] | None, flat: Any
) -> tuple[dict[str, Any], list[str]]:
    """Gemma 4 has a rope for each layer type; mlx-lm's defaults are the family's own."""
    if nested is None:
        if flat is not None:
            raise ConfigError(
                f"{file}: 'rope_theta' is flat, but Gemma 4 has one for each layer type; give "
                "'rope_parameters' with 'full_attention' and 'sliding_attention'"
            )
        return {}, []
    for kind in ("full_attention", "sliding_attention"):
        if not isinstance(nested.get(kind), dict) or "rope_theta" not in nested[kind]:
            raise ConfigError(
                f"{file}: 'rope_parameters.{kind}.rope_theta' is missing; mlx-lm would take 10000"
            )
    return {}, []


def _wrapped_vocab(file: Path, raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """mlx-lm takes the wrapper's vocab_size, or 262144, never the text config's."""
    inner, outer = text.get("vocab_size"), raw.get("vocab_size")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(
            f"{file}: 'vocab_size' is {outer} and 'text_config.vocab_size' is {inner}; one of them "
            "is wrong"
        )
    return {"vocab_size": inner} if outer is None and inner is not None else {}


def _check_layer_types(file: Path, family: Family, text: Mapping[str, Any]) -> None:
    """mlx-lm derives a hybrid's layers from full_attention_interval and ignores layer_types."""
    stated, interval = text.get("layer_types"), text.get("full_attention_interval", 4)
    derived = family.decoder == "hybrid" and isinstance(interval, int)
    if not derived or not isinstance(stated, list):
        return
    for index, kind in enumerate(stated):
        expected = "linear_attention" if (index + 1) % max(interval, 1) else "full_attention"
        if kind != expected:
            raise ConfigError(
                f"{file}: 'layer_types' has {kind!r} at layer {index}, but full_attention_interval "
                f"{interval} makes it {expected}; mlx-lm builds the latter"
            )


def _check_window(file: Path, family: Family, text: Mapping[str, Any]) -> None:
    """A window that is stated as nothing stops mlx-lm in its first forward."""
    types = text.get("layer_types")
    slides = isinstance(types, list) and "sliding_attention" in types
    if not family.slides or not slides or "sliding_window" not in text:
        return
    window = text["sliding_window"]
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ConfigError(
            f"{file}: 'layer_types' has sliding_attention, but 'sliding_window' is {window!r}, "
            "expected a positive number of rows"
        )
