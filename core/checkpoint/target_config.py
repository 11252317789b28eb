"""Reading config.json: typed fields whose errors name the key and the file.

Knows nothing of weights; everything here is cheap and happens before a weights file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ModelNotFound, UnsupportedModel
from .config_repairs import Repairs, find_repairs
from .families import FAMILIES, Family, require_supported
from .listing import list_files


def refuse_gguf(path: Path) -> None:
    """UnsupportedModel where `path` is a GGUF file, or a directory with nothing else to read."""
    is_file = path.suffix == ".gguf" and path.is_file()
    alone = path.is_dir() and not (path / "config.json").exists()
    found = path if is_file else next(iter(list_files(path, "*.gguf")), None) if alone else None
    if found is not None:
        raise UnsupportedModel(
            f"{found} is a GGUF file, which llama.cpp reads and this suite does not: give the "
            "checkpoint that it was converted from (config.json and *.safetensors)"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises ModelNotFound where there is no such file, ConfigError where it is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(
            f"{path} does not exist: give the directory that holds config.json and the "
            "safetensors files, or a hub id"
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(
            f"{path} is not JSON ({exc}); fetch the file again or restore it"
        ) from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected a JSON object")
    return value


@dataclass(frozen=True)
class Fields:
    """Typed look-up of one key in nested places, the first place that has it wins.

    `places` are (label, mapping) pairs, e.g. ("dflash_config.", {...}), ("", {...}).
    """

    path: Path
    places: tuple[tuple[str, Mapping[str, Any]], ...]

    def raw(self, key: str) -> tuple[str, Any] | None:
        """(label, value) of the first place where `key` is set to something, or None."""
        for label, mapping in self.places:
            if mapping.get(key) is not None:
                return label + key, mapping[key]
        return None

    def require(self, key: str) -> tuple[str, Any]:
        """As raw, but a missing key is a ConfigError that names it."""
        found = self.raw(key)
        if found is None:
            names = " or ".join(f"'{label}{key}'" for label, _ in self.places)
            raise ConfigError(f"{self.path}: {names} is missing; it has no safe default")
        return found

    def require_agreement(self, key: str) -> None:
        """ConfigError where two places state `key` differently: one of them is wrong."""
        stated = {label + key: m[key] for label, m in self.places if m.get(key) is not None}
        if len(stated) > 1 and len({repr(value) for value in map(_plain, stated.values())}) > 1:
            both = " and ".join(f"'{label}' is {value!r}" for label, value in stated.items())
            raise ConfigError(f"{self.path}: {both}; they contradict each other")

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        found = self.raw(key) if default is not None else self.require(key)
        if found is None:
            assert default is not None
            return default
        label, value = found
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(label, value, "a whole number")
        if value < minimum:
            raise ConfigError(f"{self.path}: '{label}' is {value}, expected at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None, minimum: float | None = None) -> float:
        """A finite number, at least `minimum` where one is given."""
        found = self.raw(key) if default is not None else self.require(key)
        if found is None:
            assert default is not None
            return default
        label, value = found
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong_type(label, value, "a number")
        if value != value or value in (float("inf"), float("-inf")):
            raise self.wrong_type(label, value, "a finite number")
        if minimum is not None and value < minimum:
            raise self.wrong_type(label, value, f"a number of at least {minimum:g}")
        return float(value)

    def boolean(self, key: str) -> bool | None:
        """True, False, or None where the key is absent."""
        found = self.raw(key)
        if found is None:
            return None
        label, value = found
        if not isinstance(value, bool):
            raise self.wrong_type(label, value, "true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, in the file's order."""
        label, value = self.require(key)
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            raise self.wrong_type(label, value, "a list of whole numbers")
        return tuple(value)

    def wrong_type(self, label: str, value: object, expected: str) -> ConfigError:
        """The error for a value of the wrong type."""
        return ConfigError(f"{self.path}: '{label}' is {value!r}, expected {expected}")


def _plain(value: object) -> object:
    """1e7 and 10000000 are the same number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else value  # type: ignore[arg-type]


def as_id_set(value: object) -> frozenset[int]:
    """Token ids of an eos field: one id, a list of ids, or nothing usable."""
    if isinstance(value, bool):
        return frozenset()
    if isinstance(value, int):
        return frozenset({value})
    if isinstance(value, Sequence) and not isinstance(value, str):
        return frozenset().union(*(as_id_set(item) for item in value if isinstance(item, int)))
    return frozenset()


@dataclass(frozen=True)
class TargetConfig:
    """What the suite needs to know of a target before its weights are opened."""

    path: Path
    model_type: str
    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    eos_ids: frozenset[int]
    raw: Mapping[str, Any]
    repairs: Repairs = field(default_factory=Repairs)

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of config.json that has the decoder's fields."""
        text: Mapping[str, Any] = self.raw.get("text_config") or self.raw
        return text

    @property
    def max_positions(self) -> int | None:
        """Positions that the model was made for; None where config.json does not say."""
        stated = self.text.get("max_position_embeddings")
        is_count = isinstance(stated, int) and not isinstance(stated, bool) and stated > 0
        return stated if is_count else None

    @property
    def family(self) -> Family:
        """What is known of its model_type."""
        return FAMILIES[self.model_type]

    @property
    def file(self) -> Path:
        """The config.json that these values came from."""
        return self.path / "config.json"


def read_target_config(directory: Path) -> TargetConfig:
    """Read a target's config.json and generation_config.json.

    Fields may sit under `text_config` (Qwen3.5 and later) or at the top level; the eos ids are
    the union of all places (formats.md section 6). Raises ModelNotFound or ConfigError.
    """
    refuse_gguf(directory)
    file = directory / "config.json"
    raw = read_json(file)
    label, model_type = Fields(file, (("", raw),)).require("model_type")
    if not isinstance(model_type, str):
        raise Fields(file, ()).wrong_type(label, model_type, "a name")
    family = require_supported(model_type, file, raw)
    text = raw.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise ConfigError(f"{file}: 'text_config' is {text!r}, expected an object")
    fields = Fields(file, (("text_config.", text), ("", raw)) if text else (("", raw),))
    generation_file = directory / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    eos_ids = frozenset().union(
        *(as_id_set(place.get("eos_token_id")) for place in (raw, text or {}, generation))
    )
    return TargetConfig(
        path=directory,
        model_type=family.model_type,
        vocab_size=fields.integer("vocab_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        hidden_size=fields.integer("hidden_size"),
        eos_ids=eos_ids,
        raw=raw,
        repairs=find_repairs(family, file, raw),
    )
