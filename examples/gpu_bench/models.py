"""Targets and drafters of published shapes with random weights, made on the device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import qwen3_5, qwen3_5_moe

from dflash_suite.core.checkpoint.rope import Rope
from dflash_suite.core.checkpoint.target_config import TargetConfig
from dflash_suite.core.cuda.backbone import fused_backbone
from dflash_suite.core.target.backbones import HybridBackbone
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.dflash.config import DrafterConfig, SelectorConfig
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.dflash.drafter import DFlashDrafter, DFlashModel
from dflash_suite.drafters.dflash.layers import make_rope

Precision = Literal["bf16", "q4"]
Shape = Literal["9b", "27b", "35b-a3b", "tiny"]

HYBRID: dict[str, Any] = {
    "attention_bias": False,
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "num_attention_heads": 16,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": 248320,
    "rope_parameters": {
        "type": "default",
        "mrope_section": [11, 11, 10],
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "9b": {
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
    "27b": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 48,
    },
    "35b-a3b": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "intermediate_size": 512,
        "moe_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
    },
    # For trying the commands where there is no GPU: same structure, no figure.
    "tiny": {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "num_attention_heads": 4,
        "vocab_size": 512,
    },
}
DRAFT_SHAPES: dict[str, dict[str, int]] = {
    "9b": {"heads": 32, "kv_heads": 8, "head_dim": 128, "inner": 12288, "mask": 248070},
    "27b": {"heads": 32, "kv_heads": 8, "head_dim": 128, "inner": 17408, "mask": 248070},
    "35b-a3b": {"heads": 32, "kv_heads": 8, "head_dim": 128, "inner": 6144, "mask": 248070},
    "tiny": {"heads": 4, "kv_heads": 2, "head_dim": 16, "inner": 128, "mask": 3},
}


def text_config(shape: Shape) -> dict[str, Any]:
    """The decoder's fields of config.json."""
    return copy.deepcopy({**HYBRID, **SHAPES[shape]})


def make_model(shape: Shape, precision: Precision, seed: int = 0) -> Any:
    """An mlx-lm model: normal weights of a size that keeps activations near 1, A_log as loaded."""
    text = text_config(shape)
    module: Any = qwen3_5_moe if "num_experts" in text else qwen3_5
    kind = "qwen3_5_moe" if "num_experts" in text else "qwen3_5"
    model = module.Model(module.ModelArgs.from_dict({"model_type": kind, "text_config": text}))
    mx.random.seed(seed)
    flat: Any = tree_flatten(model.parameters())
    for path, array in flat:
        if path.endswith("A_log"):
            weight = mx.log(mx.random.uniform(0.1, 8.0, array.shape))
        elif array.ndim == 1:
            weight = mx.ones(array.shape, dtype=mx.bfloat16)
        else:
            fan_in = array.shape[1] if path.endswith("conv1d.weight") else array.shape[-1]
            weight = mx.random.normal(array.shape, dtype=mx.bfloat16) * (fan_in**-0.5)
        mx.eval(weight)
        model.update(tree_unflatten([(path, weight)]), strict=False)
    if precision == "q4":
        predicate = getattr(model, "quant_predicate", None)
        nn.quantize(model, group_size=64, bits=4, class_predicate=_quantizes(predicate))
    model.eval()
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def _quantizes(predicate: Any) -> Any:
    def decide(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % 64:
            return False
        return True if predicate is None else predicate(path, module)

    return decide


def bind(model: Any, shape: Shape, fused: bool = True) -> Target:
    """The target over a model; fused where this is CUDA and it is asked for."""
    text = text_config(shape)
    config = TargetConfig(
        path=Path(shape),
        model_type="qwen3_5",
        vocab_size=text["vocab_size"],
        num_hidden_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        eos_ids=frozenset(),
        raw={},
    )
    plain = HybridBackbone(model)
    return Target((fused_backbone(plain) if fused else None) or plain, config)


def draft_config(shape: Shape, kind: DrafterKind = "dflash2") -> DrafterConfig:
    """Of published geometry: 5 sliding layers, block 8, selector top-16 of rank 256."""
    text, draft = text_config(shape), DRAFT_SHAPES[shape]
    layers = text["num_hidden_layers"]
    return DrafterConfig(
        path=Path("random"),
        kind=kind,
        vocab_size=text["vocab_size"],
        num_target_layers=layers,
        hidden_size=text["hidden_size"],
        num_hidden_layers=5,
        num_attention_heads=draft["heads"],
        num_key_value_heads=draft["kv_heads"],
        head_dim=draft["head_dim"],
        intermediate_size=draft["inner"],
        rms_norm_eps=1e-6,
        rope=Rope("default", 1e7),
        max_position_embeddings=262144,
        block_size=8,
        mask_token_id=draft["mask"],
        target_layer_ids=tuple(1 + index * (layers - 3) // 4 for index in range(5)),
        layer_types=("sliding_attention",) * 5,
        sliding_window=2048,
        is_causal=False,
        attention_bias=False,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=None,
        selector=SelectorConfig(2, 16, min(256, text["hidden_size"]), 16)
        if kind == "dflash2"
        else None,
    )


def make_drafter(
    target: Target,
    shape: Shape,
    bits: int | None = 4,
    seed: int = 1,
    kind: DrafterKind = "dflash2",
) -> Any:
    """A random drafter whose projections are quantized to `bits`, as a slab is."""
    config = draft_config(shape, kind)
    model = DFlashModel(config)
    mx.random.seed(seed)
    flat: Any = tree_flatten(model.parameters())
    arrays = []
    for path, array in flat:
        weight = mx.ones(array.shape, dtype=mx.bfloat16)
        if array.ndim > 1:
            weight = mx.random.normal(array.shape, dtype=mx.bfloat16) * (array.shape[-1] ** -0.5)
        arrays.append((path, weight))
    model.load_weights(arrays, strict=True)
    if bits is not None:
        nn.quantize(model, group_size=64, bits=bits, class_predicate=_quantizes(None))
    model.eval()
    mx.eval(model.parameters())
    return DFlashDrafter(model, config, target, make_rope(config))
