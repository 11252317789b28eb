"""What a config.json asks of the rotary embedding, wherever it says so, as transformers reads it.

The same settings stand flat (`rope_theta`, `rope_scaling`), in `rope_parameters`, or in both, with
`type` for `rope_type` in older files. They are read here once, for targets and drafters; what two
places state differently is refused, because each program would follow another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, UnsupportedModel
from ..json_values import shown

PLACES = ("rope_parameters", "rope_scaling")
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (
        "factor", "original_max_position_embeddings", "attention_factor", *BETAS, "mscale",
        "mscale_all_dim", "truncate",
    ),
    "llama3": (
        "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
    ),
    "proportional": ("factor",),
}  # fmt: skip
"""The kinds that are built here, and the settings that each of them reads."""
REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
WITHOUT_EFFECT = ("mrope_section", "mrope_interleaved", "finetuned")
"""What changes nothing for text: sections of positions that are all alike, and a remark."""


@dataclass(frozen=True)
class Rope:
    """One rotary embedding: its kind, base, share of the head that turns, and the kind's settings.

    ignored: settings that this kind does not read, in transformers as here.
    """

    kind: str
    theta: float
    partial: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def dims(self, head_dim: int) -> int:
        """How many dimensions of a head turn."""
        return head_dim if self.kind == "proportional" else int(head_dim * self.partial)

    def __str__(self) -> str:
        said = [self.kind, f"theta {self.theta:g}"]
        said += [f"{key} {value}" for key, value in sorted(self.settings.items())]
        if self.partial != 1.0:
            said.append(f"partial_rotary_factor {self.partial:g}")
        return ", ".join(said)


@dataclass(frozen=True)
class RopeDefaults:
    """What a family's own code takes where config.json is silent; theta None: it has to say it.

    settings: those of a config.json that states no scaling at all; turns_part: whether the family
    turns a part of each head only, as partial_rotary_factor says.
    """

    theta: float | None = None
    partial: float = 1.0
    turns_part: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_rope(file: Path, text: Mapping[str, Any], defaults: RopeDefaults) -> Rope:
    """The rope that the flat keys, `rope_parameters` and `rope_scaling` of a config ask for.

    Raises ConfigError for what is missing, of the wrong type or contradictory, UnsupportedModel
    for a kind, or a share of the head, that is not built here.
    """
    stated = _join(file, text) or dict(defaults.settings)
    theta = _number(file, "rope_theta", _one_of(file, "rope_theta", text, stated), defaults.theta)
    partial_key = "partial_rotary_factor"
    partial = _number(file, partial_key, _one_of(file, partial_key, text, stated), defaults.partial)
    kind = _kind(file, stated)
    if not 0 < partial <= 1:
        raise ConfigError(f"{file}: '{partial_key}' is {partial:g}, expected above 0, at most 1")
    if partial != 1 and not defaults.turns_part and kind != "proportional":
        raise UnsupportedModel(
            f"{file}: '{partial_key}' is {partial:g}, which is not implemented for this model: its "
            "code turns whole heads; correct config.json, or give another checkpoint"
        )
    return Rope(kind, theta, partial, *_settings(file, kind, stated, text))


def _join(file: Path, text: Mapping[str, Any]) -> dict[str, Any]:
    """Both places as one mapping, `type` as `rope_type`."""
    joined: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for place in PLACES:
        found = text.get(place)
        if found is not None and not isinstance(found, dict):
            raise ConfigError(f"{file}: '{place}' is {shown(found)}, expected an object")
        for key, value in (found or {}).items():
            name = "rope_type" if key == "type" else key
            value = "default" if name == "rope_type" and value == "mrope" else value
            if value is None:
                continue
            label = f"{place}.{key}"
            if name in joined and joined[name] != value:
                raise ConfigError(
                    f"{file}: '{origin[name]}' is {shown(joined[name])} and '{label}' is "
                    f"{shown(value)}; they contradict each other: keep the one that the model was "
                    "trained with"
                )
            joined.setdefault(name, value)
            origin.setdefault(name, label)
    return joined


def _one_of(file: Path, key: str, text: Mapping[str, Any], stated: Mapping[str, Any]) -> Any:
    """A key that may stand flat too; None where it stands nowhere."""
    flat, inner = text.get(key), stated.get(key)
    if flat is not None and inner is not None and flat != inner:
        raise ConfigError(
            f"{file}: '{key}' is {shown(flat)} and 'rope_parameters.{key}' is {shown(inner)}; they "
            "contradict each other, so one of them is wrong: fetch the file again or correct it"
        )
    return flat if inner is None else inner


def _number(file: Path, key: str, value: Any, default: float | None = None) -> float:
    """A positive finite number."""
    if value is None:
        if default is None:
            raise ConfigError(
                f"{file}: 'rope_parameters.{key}' or '{key}' is missing; mlx-lm would take a "
                "default that this model was not trained with"
            )
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1e30:  # also false for NaN; rope is float32 in the end
        raise ConfigError(f"{file}: '{key}' is {shown(value)}, expected a positive number")
    return float(value)


def _kind(file: Path, stated: Mapping[str, Any]) -> str:
    kind = stated.get("rope_type", "default")
    if not isinstance(kind, str):
        raise ConfigError(f"{file}: 'rope_type' is {shown(kind)}, expected a name")
    if kind == "longrope":
        raise UnsupportedModel(
            f"{file}: rope_type 'longrope' changes its frequencies with the length of the text, "
            "which mlx-lm does not do; give a checkpoint with another rope"
        )
    if kind not in KINDS:
        raise ConfigError(
            f"{file}: no rope can be built of rope_type '{kind}'; known: {', '.join(KINDS)}"
        )
    return kind


def _settings(
    file: Path, kind: str, stated: Mapping[str, Any], text: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(what the kind reads, what it does not read)."""
    sections = stated.get("mrope_section")
    if sections is not None and (not isinstance(sections, list) or len(sections) != 3):
        found = shown(sections)
        raise ConfigError(f"{file}: 'mrope_section' of the rope (mrope) is {found}, not three")
    names = ("rope_type", "rope_theta", "partial_rotary_factor", *WITHOUT_EFFECT)
    ignored = tuple(sorted(key for key in stated if key not in (*names, *KINDS[kind])))
    settings: dict[str, Any] = {}
    for key in KINDS[kind]:
        value = stated.get(key)
        if key == "original_max_position_embeddings":
            value = _original(file, stated, text)
        if key == "truncate":
            if value is not None and not isinstance(value, bool):
                raise ConfigError(f"{file}: '{key}' is {shown(value)}, expected true or false")
            settings |= {} if value in (None, True) else {key: False}
        elif value is not None and not (key.startswith("mscale") and value == 0):
            settings[key] = _number(file, key, value)
        elif key in REQUIRED.get(kind, ()):
            raise ConfigError(
                f"{file}: no rope can be built: rope_type '{kind}' needs '{key}', which is missing"
            )
    return settings, ignored


def _original(file: Path, stated: Mapping[str, Any], text: Mapping[str, Any]) -> Any:
    """Positions of the training before it was extended: flat, in the rope, else all of them."""
    key = "original_max_position_embeddings"
    value = text.get(key)
    value = stated.get(key) if value is None else value
    value = text.get("max_position_embeddings") if value is None else value
    if value is None:
        raise ConfigError(f"{file}: the rope needs '{key}', which is missing")
    return value
