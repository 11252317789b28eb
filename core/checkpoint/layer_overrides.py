"""Gemma 4 as transformers writes it from 5.15 on: sizes of full-attention layers by layer.

Older files, and mlx-lm, have them once, as `global_head_dim` and `num_global_key_value_heads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..json_values import shown

KEY = "per_layer_config"
ONCE = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""What a layer may say, and the key that says it for all full-attention layers."""


def flat_sizes(file: Path, text: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of full-attention layers under the older keys; empty where the file has those, or
    says nothing by layer. ConfigError for what the older keys cannot say."""
    stated = text.get(KEY)
    if stated is None:
        return {}
    types = text.get("layer_types")
    if not isinstance(stated, Mapping) or not isinstance(types, list):
        raise ConfigError(
            f"{file}: '{KEY}' is {shown(stated)}, expected an object by layer beside a list "
            "'layer_types'; fetch config.json again"
        )
    full = [str(index) for index, kind in enumerate(types) if kind == "full_attention"]
    said = [stated.get(index) for index in full]
    if sorted(map(str, stated)) != sorted(full) or any(one != said[0] for one in said):
        raise ConfigError(
            f"{file}: '{KEY}' says something of other layers than the full-attention ones "
            f"({', '.join(full)}), or not the same of all of them, which mlx-lm cannot build"
        )
    sizes = said[0] if said else {}
    if not isinstance(sizes, Mapping) or not set(sizes) <= set(ONCE):
        raise ConfigError(
            f"{file}: '{KEY}' has {shown(sizes)}, of which mlx-lm can build {' and '.join(ONCE)}"
        )
    found = {ONCE[key]: value for key, value in sizes.items()}
    for key, value in found.items():
        if text.get(key, value) != value:
            raise ConfigError(
                f"{file}: '{KEY}' and '{key}' disagree ({shown(value)}, {shown(text[key])}); fetch "
                "config.json again"
            )
    return found


def tied_at_the_top(raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """`tie_word_embeddings` of a nested config, where it stands beside it alone."""
    key = "tie_word_embeddings"
    return {key: raw[key]} if text is not raw and key in raw and key not in text else {}
