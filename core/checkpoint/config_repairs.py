"""What mlx-lm would read from a target's config.json without a word and wrongly (formats.md 4.1).

mlx-lm looks for some keys in one place only and otherwise takes a default: another rope base, no
rope scaling. Each such config is either repaired, through the overrides that mlx-lm's load_model
takes, or refused; what was done stands in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, UnsupportedModel

SUPPORTED = (
    "gemma4",
    "gemma4_text",
    "gpt_oss",
    "llama",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
)
"""model_types that run as targets; `families.py` has the class of each."""
ALIASES = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}
"""Text configs that may stand alone, without the wrapper that mlx-lm names the model by."""

NESTED_ROPE = ("qwen3_5", "qwen3_5_moe")
"""mlx-lm reads rope_parameters only."""
FLAT_ROPE = ("gpt_oss", "llama", "qwen3_moe", "qwen3_next")
"""mlx-lm reads rope_theta and rope_scaling only."""
NEEDS_THETA = (*NESTED_ROPE, "qwen3", "qwen3_moe", "qwen3_next")
"""Families whose rope base has no default that every release shares."""
HYBRID = (*NESTED_ROPE, "qwen3_next")
SLIDING = ("gemma4", "gemma4_text", "gpt_oss", "llama")
"""Families in which some layers may see a window only."""


@dataclass(frozen=True)
class Repairs:
    """overrides: what load_model's model_config gets; notes: one line each, for the user."""

    overrides: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def canonical_type(model_type: str) -> str:
    """The model_type that mlx-lm knows."""
    return ALIASES.get(model_type, model_type)


def require_supported(model_type: str, file: object, raw: Mapping[str, Any] | None = None) -> None:
    """UnsupportedModel that lists the supported types, unless `model_type` is one of them."""
    if canonical_type(model_type) in SUPPORTED:
        return
    text = (raw or {}).get("text_config")
    inner = text.get("model_type") if isinstance(text, dict) else None
    hint = (
        f". Its text_config is a '{inner}', which is supported on its own: a checkpoint of the "
        "text model alone would run"
        if isinstance(inner, str) and canonical_type(inner) in SUPPORTED
        else ""
    )
    raise UnsupportedModel(
        f"{file}: model_type '{model_type}' is not supported as a target; supported: "
        f"{', '.join(SUPPORTED)}{hint}"
    )


def find_repairs(file: Path, raw: Mapping[str, Any]) -> Repairs:
    """What must change before mlx-lm reads this config; ConfigError where that is not clear."""
    model_type = canonical_type(str(raw.get("model_type")))
    text = raw.get("text_config") or raw
    _check_layer_types(file, model_type, text)
    _check_window(file, model_type, text)
    changes, notes = _rope_changes(file, model_type, text)
    overrides: dict[str, Any] = {}
    if model_type != raw.get("model_type"):
        overrides["model_type"] = model_type
    if changes:
        overrides |= {"text_config": {**text, **changes}} if text is not raw else changes
    if model_type == "gemma4":
        overrides |= _gemma_vocab(file, raw, text)
    return Repairs(overrides, tuple(notes))


def _rope_changes(
    file: Path, model_type: str, text: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    nested, flat = text.get("rope_parameters"), text.get("rope_theta")
    if nested is not None and not isinstance(nested, dict):
        raise ConfigError(f"{file}: 'rope_parameters' is {nested!r}, expected an object")
    if model_type.startswith("gemma4"):
        return _gemma_rope(file, nested, flat)
    inner = (nested or {}).get("rope_theta")
    if inner is not None and flat is not None and inner != flat:
        raise ConfigError(
            f"{file}: 'rope_theta' is {flat} and 'rope_parameters.rope_theta' is {inner}; one of "
            "them is wrong: fetch the file again or correct it"
        )
    if inner is None and flat is None:
        if model_type in NEEDS_THETA:
            raise ConfigError(
                f"{file}: 'rope_parameters.rope_theta' or 'rope_theta' is missing; mlx-lm would "
                "take a default that this model was not trained with"
            )
        return {}, []
    if model_type in NESTED_ROPE and inner is None:
        return _nest(file, text, nested or {}, flat)
    if model_type in FLAT_ROPE and flat is None:
        return _flatten(file, model_type, text, nested or {})
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
    file: Path, model_type: str, text: Mapping[str, Any], nested: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """rope_parameters into flat keys, for families where mlx-lm reads nothing else."""
    changes: dict[str, Any] = {"rope_theta": nested["rope_theta"]}
    kind = nested.get("rope_type") or nested.get("type") or "default"
    if kind != "default" and text.get("rope_scaling") is None:
        changes["rope_scaling"] = dict(nested)
    factor = nested.get("partial_rotary_factor")
    if model_type == "qwen3_next" and factor is not None:
        changes["partial_rotary_factor"] = factor
    note = (
        f"{file} states rope_theta {nested['rope_theta']} inside rope_parameters, where mlx-lm "
        f"does not look for {model_type}; it was passed on as flat keys"
    )
    return changes, [note]


def _gemma_rope(
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


def _gemma_vocab(file: Path, raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """mlx-lm takes the wrapper's vocab_size, or 262144, never the text config's."""
    inner, outer = text.get("vocab_size"), raw.get("vocab_size")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(
            f"{file}: 'vocab_size' is {outer} and 'text_config.vocab_size' is {inner}; one of them "
            "is wrong"
        )
    return {"vocab_size": inner} if outer is None and inner is not None else {}


def _check_layer_types(file: Path, model_type: str, text: Mapping[str, Any]) -> None:
    """mlx-lm derives a hybrid's layers from full_attention_interval and ignores layer_types."""
    stated, interval = text.get("layer_types"), text.get("full_attention_interval", 4)
    if model_type not in HYBRID or not isinstance(stated, list) or not isinstance(interval, int):
        return
    for index, kind in enumerate(stated):
        expected = "linear_attention" if (index + 1) % max(interval, 1) else "full_attention"
        if kind != expected:
            raise ConfigError(
                f"{file}: 'layer_types' has {kind!r} at layer {index}, but full_attention_interval "
                f"{interval} makes it {expected}; mlx-lm builds the latter"
            )


def _check_window(file: Path, model_type: str, text: Mapping[str, Any]) -> None:
    """A window that is stated as nothing stops mlx-lm in its first forward."""
    types = text.get("layer_types")
    slides = isinstance(types, list) and "sliding_attention" in types
    if model_type not in SLIDING or not slides or "sliding_window" not in text:
        return
    window = text["sliding_window"]
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ConfigError(
            f"{file}: 'layer_types' has sliding_attention, but 'sliding_window' is {window!r}, "
            "expected a positive number of rows"
        )
