"""A tiny random target of every supported family, saved as a checkpoint would be.

`tiny.py` has the two that most tests need; these are for what holds for all of them.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map, tree_map_with_path

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.loading.load import LoadedTarget, load_target
from tests.kit.tiny import COMMON, HYBRID, VOCAB, save_byte_tokenizer, save_weights, with_eos

WINDOW = 12
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
SLIDING_TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
GEMMA_ROPE: dict[str, Any] = {
    "full_attention": {
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
        "rope_type": "proportional",
    },
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
GEMMA: dict[str, Any] = {
    **COMMON,
    "model_type": "gemma4_text",
    "global_head_dim": 32,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "rope_parameters": GEMMA_ROPE,
    "sliding_window": WINDOW,
    "layer_types": SLIDING_TYPES,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": False,
}
QWEN3_NEXT: dict[str, Any] = {
    **COMMON,
    **{key: value for key, value in HYBRID.items() if key.startswith(("linear", "full"))},
    **MOE,
    "model_type": "qwen3_next",
    "shared_expert_intermediate_size": 32,
    "rope_theta": 100000.0,
    "partial_rotary_factor": 0.25,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", **COMMON, "rope_theta": 10000.0},
    "llama": {"model_type": "llama", **COMMON, "rope_theta": 10000.0},
    "llama-sliding": {
        "model_type": "llama",
        **COMMON,
        "rope_theta": 10000.0,
        "layer_types": SLIDING_TYPES,
        "sliding_window": WINDOW,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **COMMON, **MOE, "rope_theta": 10000.0},
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5": {"model_type": "qwen3_5", "text_config": {**COMMON, **HYBRID}},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": {
            **COMMON,
            **HYBRID,
            **MOE,
            "shared_expert_intermediate_size": 32,
            "model_type": "qwen3_5_moe_text",
        },
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **COMMON,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_window": WINDOW,
        "layer_types": SLIDING_TYPES,
    },
    "gemma4": {"model_type": "gemma4", "vocab_size": VOCAB, "text_config": GEMMA},
    # As the 2B and 4B sizes: per-layer inputs, and layers that share keys and values.
    "gemma4_text": {
        **GEMMA,
        "num_hidden_layers": 6,
        "layer_types": [*SLIDING_TYPES, "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": VOCAB,
        "use_double_wide_mlp": True,
    },
    # As the 26B size: experts beside the dense MLP, keys used as values in full layers.
    "gemma4-moe": {
        "model_type": "gemma4",
        "vocab_size": VOCAB,
        "text_config": {
            **GEMMA,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    },
}
"""Name -> config.json; the name begins with the model_type."""
DENSE = ("qwen3", "llama", "llama-sliding", "qwen3_5", "gemma4", "gemma4_text")
SLIDING = ("llama-sliding", "gpt_oss", "gemma4", "gemma4_text", "gemma4-moe")


def family_config(name: str, **changes: Any) -> dict[str, Any]:
    """A copy of one config.json; `changes` go where the decoder's fields are."""
    raw = copy.deepcopy(CONFIGS[name])
    raw.get("text_config", raw).update(changes)
    return raw


def family_model(
    raw: dict[str, Any], quantization: dict[str, Any] | None = None, seed: int = 0
) -> Any:
    """mlx-lm's model of a config with seeded weights, matrices times 4; perhaps quantized."""
    mx.random.seed(seed)
    module: Any = importlib.import_module(f"mlx_lm.models.{raw['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(raw)))
    model.update(tree_map(lambda w: w * 4 if w.ndim >= 2 else w, model.parameters()))
    if quantization:
        settings = {k: v for k, v in quantization.items() if not isinstance(v, dict | bool)}
        overrides = {k: v for k, v in quantization.items() if isinstance(v, dict | bool)}
        nn.quantize(
            model,
            **settings,
            class_predicate=lambda path, m: (
                hasattr(m, "to_quantized") and overrides.get(path, True)
            ),
        )
    model.eval()
    mx.eval(model.parameters())
    return model


def save_family(
    directory: Path,
    name: str,
    *,
    quantization: dict[str, Any] | None = None,
    dtype: mx.Dtype = mx.float32,
    eos_ids: Sequence[int] = (),
    seed: int = 0,
    **changes: Any,
) -> Path:
    """A checkpoint directory of one family, with a byte tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    raw = family_config(name, **changes)
    model = family_model(raw, quantization, seed)
    if dtype != mx.float32:
        keeps_cast = getattr(model, "cast_predicate", lambda path: True)

        def cast(path: str, array: mx.array) -> mx.array:
            floating = mx.issubdtype(array.dtype, mx.floating)
            return array.astype(dtype) if floating and keeps_cast(path) else array

        model.update(tree_map_with_path(cast, model.parameters()))
    raw["eos_token_id"] = list(eos_ids)
    if quantization:
        raw["quantization"] = quantization
    (directory / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    save_weights(directory / "model.safetensors", model)
    save_byte_tokenizer(directory)
    return directory


def load_family(directory: Path, dtype: str = "auto") -> LoadedTarget:
    """The target of a directory, held to mlx-lm's own forward; nothing ends its answers."""
    loaded = load_target(read_target_config(directory), dtype)
    return LoadedTarget(with_eos(loaded.target, ()), loaded.tokenizer)
