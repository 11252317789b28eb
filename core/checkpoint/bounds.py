"""Sizes in a config.json, bounded before anything is built of them.

A damaged file may ask for a billion layers, or for rows wider than MLX can count; modules would be
built of that for hours. Each bound is far above anything that was published, and such that no
product of two sizes leaves 31 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..json_values import bounded, is_number, is_whole, wrong_value

LAYERS, HEADS, WIDTH, TOKENS, EXPERTS = 1024, 4096, 2**20, 2**24, 2**14
POSITIONS = 2**31 - 1
SIZES: dict[str, tuple[int, int]] = {
    "num_hidden_layers": (1, LAYERS),
    "num_target_layers": (1, LAYERS),
    "num_kv_shared_layers": (0, LAYERS),
    "mtp_num_hidden_layers": (0, LAYERS),
    "num_nextn_predict_layers": (0, LAYERS),
    "full_attention_interval": (1, LAYERS),
    "decoder_sparse_step": (1, LAYERS),
    "num_attention_heads": (1, HEADS),
    "num_key_value_heads": (1, HEADS),
    "num_global_key_value_heads": (1, HEADS),
    "linear_num_value_heads": (1, HEADS),
    "linear_num_key_heads": (1, HEADS),
    "head_dim": (1, 8192),
    "global_head_dim": (1, 8192),
    "linear_key_head_dim": (1, 8192),
    "linear_value_head_dim": (1, 8192),
    "linear_conv_kernel_dim": (1, 256),
    "conv_kernel_size": (1, 256),
    "conv_group_size": (1, WIDTH),
    "selector_rank": (1, 2**16),
    "hidden_size": (1, WIDTH),
    "intermediate_size": (1, WIDTH),
    "moe_intermediate_size": (1, WIDTH),
    "shared_expert_intermediate_size": (1, WIDTH),
    "hidden_size_per_layer_input": (0, WIDTH),
    "vocab_size": (1, TOKENS),
    "vocab_size_per_layer_input": (1, TOKENS),
    "selector_top_k": (1, TOKENS),
    "num_experts": (0, EXPERTS),
    "num_local_experts": (1, EXPERTS),
    "num_experts_per_tok": (1, EXPERTS),
    "top_k_experts": (1, EXPERTS),
    "block_size": (1, 4096),
    "sliding_window": (0, POSITIONS),
    "max_position_embeddings": (1, POSITIONS),
    "original_max_position_embeddings": (1, POSITIONS),
}
"""Key -> (least, most). What is no whole number is left to those who know the key's type."""
EPSILONS = ("rms_norm_eps", "layer_norm_eps")
"""What norms add to a mean square."""
MOST_EPSILON = 1.0


def check_bounds(file: Path, places: Mapping[str, Mapping[str, Any]]) -> None:
    """ConfigError for a size, or a norm's epsilon, that no model could be built with.

    places: label, as it stands before a key in messages, and the part of the file.
    """
    for label, place in places.items():
        for key, (least, most) in SIZES.items():
            if is_whole(place.get(key)):
                bounded(f"{file}: '{label}{key}'", place[key], least, most)
        for key in EPSILONS:
            value = place.get(key)
            if value is None or (is_number(value) and 0 < value <= MOST_EPSILON):
                continue
            expected = f"a number above 0, at most {MOST_EPSILON:g}"
            raise wrong_value(f"{file}: '{label}{key}'", value, expected, ConfigError)
