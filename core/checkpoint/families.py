"""The families of targets: one row for each model_type, with all that is asked by its name.

A new family is a row here. Where no decoder that is there runs it, it is a backbone class too, in
`core/target/families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UnsupportedModel
from .rope import RopeDefaults

Decoder = Literal["plain", "hybrid", "gemma4"]
"""What runs the layers: `core/target/families.py` has the class of each."""
RopeKeys = Literal["nested", "flat", "both", "layer types"]
"""Where mlx-lm looks for the rope's base: in `rope_parameters` alone, in `rope_theta` and
`rope_scaling` alone, in either, or in `rope_parameters` by layer type."""


@dataclass(frozen=True)
class Family:
    """What is known of a model_type before its weights are opened.

    rope: where mlx-lm reads the rope settings; rope_defaults: what its own code takes where
    config.json is silent, without a base where no base is shared by all releases; scales_rope:
    mlx-lm's module applies a scaling at all; slides: some layers may see a window only;
    wraps_vocab: mlx-lm takes the vocabulary of the wrapper, never of its text config; unread:
    parts of the names of tensors that a checkpoint may hold and mlx-lm's strict load would stumble
    over; aliases: model_types of text configs that may stand alone, without the wrapper that
    mlx-lm names the model by.
    """

    model_type: str
    decoder: Decoder
    rope: RopeKeys
    rope_defaults: RopeDefaults = RopeDefaults()
    scales_rope: bool = True
    slides: bool = False
    wraps_vocab: bool = False
    unread: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def reads(self, tensor: str) -> bool:
        """Whether a tensor of this name is given to mlx-lm."""
        return not any(part in tensor for part in self.unread)


HYBRID = RopeDefaults(partial=0.25, turns_part=True)
GPT_OSS = RopeDefaults(
    150_000.0,
    settings={
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
)
ROWS = (
    Family("gemma4", "gemma4", "layer types", slides=True, wraps_vocab=True),
    Family("gemma4_text", "gemma4", "layer types", slides=True),
    Family("gpt_oss", "plain", "flat", GPT_OSS, slides=True),
    Family("llama", "plain", "flat", RopeDefaults(10_000.0), slides=True),
    Family("qwen3", "plain", "both"),
    Family("qwen3_5", "hybrid", "nested", HYBRID, aliases=("qwen3_5_text",)),
    Family("qwen3_5_moe", "hybrid", "nested", HYBRID, aliases=("qwen3_5_moe_text",)),
    Family("qwen3_moe", "plain", "flat", scales_rope=False),
    Family(
        "qwen3_next",
        "hybrid",
        "flat",
        HYBRID,
        unread=("mtp.",),  # mlx-lm drops them from files with numbered experts only
    ),
)
FAMILIES: dict[str, Family] = {row.model_type: row for row in ROWS}


def find_family(model_type: str) -> Family | None:
    """The row of a model_type or of an alias; None where there is none."""
    known = FAMILIES.get(model_type)
    return known or next((row for row in FAMILIES.values() if model_type in row.aliases), None)


def canonical_type(model_type: str) -> str:
    """The model_type that mlx-lm knows."""
    family = find_family(model_type)
    return family.model_type if family is not None else model_type


def require_supported(
    model_type: str, file: object, raw: Mapping[str, Any] | None = None
) -> Family:
    """The family of a model_type, or UnsupportedModel that lists the supported ones."""
    family = find_family(model_type)
    if family is not None:
        return family
    text = (raw or {}).get("text_config")
    inner = text.get("model_type") if isinstance(text, dict) else None
    hint = (
        f". Its text_config is a '{inner}', which is supported on its own: a checkpoint of the "
        "text model alone would run"
        if isinstance(inner, str) and find_family(inner) is not None
        else ""
    )
    raise UnsupportedModel(
        f"{file}: model_type '{model_type}' is not supported as a target; supported: "
        f"{', '.join(sorted(FAMILIES))}{hint}"
    )
