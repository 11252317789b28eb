"""A target's config.json: what the suite needs of it, checked before a weights file is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, UnsupportedModel
from ..json_values import Fields, checked, read_json, wrong_value
from .bounds import check_bounds
from .config_repairs import Repairs, find_repairs
from .families import FAMILIES, Family, require_supported
from .foreign_formats import refuse_foreign_target
from .listing import list_files

ADAPTER_CONFIG = "adapter_config.json"


def is_peft(config: Mapping[str, Any]) -> bool:
    """Whether an adapter_config.json is PEFT's and not mlx-lm's."""
    return "peft_type" in config or "base_model_name_or_path" in config


def refuse_other_kinds(path: Path) -> None:
    """UnsupportedModel where `path` is a GGUF file, or a directory with no model but that, or a
    LoRA adapter."""
    is_file = path.suffix == ".gguf" and path.is_file()
    alone = path.is_dir() and not (path / "config.json").exists()
    found = path if is_file else next(iter(list_files(path, "*.gguf")), None) if alone else None
    if found is not None:
        raise UnsupportedModel(
            f"{found} is a GGUF file, which llama.cpp reads and this suite does not: give the "
            "checkpoint that it was converted from (config.json and *.safetensors)"
        )
    if alone and (path / ADAPTER_CONFIG).is_file():
        base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
        model = f" ({base})" if isinstance(base, str) and base else ""
        raise UnsupportedModel(
            f"{path} is a LoRA adapter and no model: give the model that it was trained for{model} "
            "with --model, and this folder with --adapter-path"
        )


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

    Fields may sit under `text_config` (Qwen3.5 and later) or at the top level. The eos ids are the
    union of all places: a published chat model ends its turns with an id that one of the two files
    lacks. Raises ModelNotFound or ConfigError.
    """
    refuse_other_kinds(directory)
    file = directory / "config.json"
    raw = read_json(file)
    label, model_type = Fields(file, (("", raw),)).require("model_type")
    if not isinstance(model_type, str):
        raise wrong_value(f"{file}: '{label}'", model_type, "a name", ConfigError)
    family = require_supported(model_type, file, raw)
    refuse_foreign_target(raw, file)
    text = raw.get("text_config")
    if text is not None:
        checked("object", f"{file}: 'text_config'", text)
    fields = Fields(file, (("text_config.", text), ("", raw)) if text else (("", raw),))
    check_bounds(file, {"text_config.": text or {}, "": raw})
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
