"""What mlx-lm would read from a target's config.json without a word and wrongly.

mlx-lm looks for some keys in one place only and otherwise takes a default: another rope base, no
rope scaling; `rope.py` has what transformers would take. Each such config is either repaired,
through the overrides that mlx-lm's load_model takes, or refused; what was done stands in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..json_values import shown
from .families import Family
from .layer_overrides import flat_sizes, tied_at_the_top
from .rope import WITHOUT_EFFECT, Rope, read_rope
from .safetensors_headers import listing

LAYER_TYPES = ("full_attention", "sliding_attention")
GEMMA_ROPES = {
    "full_attention": Rope("proportional", 1_000_000.0, 0.25),
    "sliding_attention": Rope("default", 10_000.0),
}
"""What mlx-lm and transformers take where a Gemma 4 config.json states no rope at all."""


@dataclass(frozen=True)
class Repairs:
    """overrides: what load_model's model_config gets; notes: one line each, for the user; ropes:
    what the rope has to be, by layer type, or under "" for all layers."""

    overrides: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ropes: Mapping[str, Rope] = field(default_factory=dict)


def find_repairs(family: Family, file: Path, raw: Mapping[str, Any]) -> Repairs:
    """What must change before mlx-lm reads this config; ConfigError where that is not clear."""
    text = raw.get("text_config") or raw
    _check_layer_types(file, family, text)
    _check_window(file, family, text)
    ropes = read_ropes(family, file, text)
    _check_wrapper(file, raw, text)
    by_layer = family.rope == "layer types"
    changes = flat_sizes(file, text) if by_layer else _placed(family, text, ropes[""])
    tied = tied_at_the_top(raw, text)
    overrides: dict[str, Any] = {}
    if family.model_type != raw.get("model_type"):
        overrides["model_type"] = family.model_type
    nested = {**changes, **tied}
    if nested:
        overrides |= {"text_config": {**text, **nested}} if text is not raw else nested
    if family.wraps_vocab:
        overrides |= _wrapped_vocab(file, raw, text)
    notes = _rope_notes(family, file, ropes, bool(changes) and not by_layer)
    return Repairs(overrides, tuple(notes), ropes)


def read_ropes(family: Family, file: Path, text: Mapping[str, Any]) -> dict[str, Rope]:
    """What config.json asks of the rope, by layer type, or under "" for all layers."""
    if family.rope != "layer types":
        return {"": read_rope(file, text, family.rope_defaults)}
    for key in ("rope_theta", "rope_scaling"):
        if text.get(key) is not None:
            raise ConfigError(
                f"{file}: '{key}' is flat, but Gemma 4 has one for each layer type; give "
                "'rope_parameters' with 'full_attention' and 'sliding_attention'"
            )
    nested = text.get("rope_parameters")
    if nested is None:
        return GEMMA_ROPES
    if not isinstance(nested, dict):
        raise ConfigError(f"{file}: 'rope_parameters' is {shown(nested)}, expected an object")
    ropes = {}
    for kind in LAYER_TYPES:
        if not isinstance(nested.get(kind), dict) or "rope_theta" not in nested[kind]:
            raise ConfigError(
                f"{file}: 'rope_parameters.{kind}.rope_theta' is missing; mlx-lm would take 10000"
            )
        positions = text.get("max_position_embeddings")
        own = {"rope_parameters": nested[kind], "max_position_embeddings": positions}
        ropes[kind] = read_rope(file, own, family.rope_defaults)
    return ropes


def _placed(family: Family, text: Mapping[str, Any], rope: Rope) -> dict[str, Any]:
    """The rope as the keys that mlx-lm reads; nothing where the file has them so already."""
    nested = text.get("rope_parameters") or {}
    stated = {"rope_type": rope.kind, **rope.settings}
    if family.rope == "nested":
        kept = {key: nested[key] for key in WITHOUT_EFFECT if key in nested}
        wanted: dict[str, Any] = {
            "rope_parameters": {
                **stated,
                **kept,
                "rope_theta": rope.theta,
                "partial_rotary_factor": rope.partial,
            }
        }
        default = {"partial_rotary_factor": rope.partial}
        return {} if _reads(wanted["rope_parameters"], {**default, **nested}) else wanted
    scaling = None if rope.kind == "default" else stated
    wanted = {"rope_theta": rope.theta, "rope_scaling": scaling}
    if family.rope_defaults.turns_part:
        wanted["partial_rotary_factor"] = rope.partial
    found = {key: text.get(key) for key in wanted}
    if family.rope == "both":
        found["rope_theta"] = found["rope_theta"] or nested.get("rope_theta")
        found["rope_scaling"] = found["rope_scaling"] or nested or None
    elif found["rope_theta"] is None and not nested:
        found["rope_theta"] = family.rope_defaults.theta
    if _reads(scaling or {}, found.pop("rope_scaling") or {}):
        del wanted["rope_scaling"]
    return {key: value for key, value in wanted.items() if key not in found or found[key] != value}


def _reads(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether mlx-lm's rope of `found` is that of `wanted`; keys that it does not read may be
    there, and so may keys that a kind of rope does not use."""
    kind = found.get("type") or found.get("rope_type") or "default"
    kind = "default" if kind == "mrope" else kind
    same_kind = kind == wanted.get("rope_type", "default")
    return same_kind and all(
        found.get(key) == value for key, value in wanted.items() if key != "rope_type"
    )


def _rope_notes(family: Family, file: Path, ropes: Mapping[str, Rope], moved: bool) -> list[str]:
    notes = []
    stated = "; ".join(dict.fromkeys(str(rope) for rope in ropes.values()))
    if moved:
        places = {"nested": "rope_parameters", "both": "one place"}.get(family.rope, "flat keys")
        notes.append(
            f"{file} states its rope (rope_theta {ropes[''].theta}) outside {places}, where mlx-lm "
            f"does not look for {family.model_type}, or leaves something to the family's code; it "
            f"was passed on: {stated}"
        )
    if not family.scales_rope and any(rope.kind != "default" for rope in ropes.values()):
        notes.append(
            f"{file} asks for a scaled rope ({stated}), which mlx-lm's {family.model_type} never "
            "reads; it was put in"
        )
    if ignored := sorted({key for rope in ropes.values() for key in rope.ignored}):
        notes.append(
            f"{file}: the rope states {listing(ignored)}, which its kind does not use; ignored"
        )
    return notes


def _check_wrapper(file: Path, raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Beside text_config nothing reads a rope."""
    for key in ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"):
        outer = None if text is raw else raw.get(key)
        inner = text.get(key)
        inner = (text.get("rope_parameters") or {}).get(key) if inner is None else inner
        if outer is not None and outer != inner:
            raise ConfigError(
                f"{file}: '{key}' stands beside 'text_config', where no program reads it, and is "
                "not the same inside; move it into 'text_config', or remove it"
            )


def _wrapped_vocab(file: Path, raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """mlx-lm takes the wrapper's vocab_size, or 262144, never the text config's."""
    inner, outer = text.get("vocab_size"), raw.get("vocab_size")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(
            f"{file}: 'vocab_size' is {shown(outer)} and 'text_config.vocab_size' is "
            f"{shown(inner)}; one of them is wrong"
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
                f"{file}: 'layer_types' has {shown(kind)} at layer {index}, but "
                f"full_attention_interval {shown(interval)} makes it {expected}; "
                "mlx-lm builds the latter"
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
            f"{file}: 'layer_types' has sliding_attention, but 'sliding_window' is "
            f"{shown(window)}, expected a positive number of rows"
        )
