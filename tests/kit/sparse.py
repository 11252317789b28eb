"""Targets of published shape and no weight: sparse files with true headers, tokenizer files.

Tensor names of the original (HF) Qwen layouts are written down here from the format; those of MLX
conversions come from mlx-lm's own modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dflash_suite.core.checkpoint.mlx_models import model_module
from tests.kit.published import Tensors, save_sparse

DTYPES = {
    mx.bfloat16: "BF16", mx.float16: "F16", mx.float32: "F32", mx.uint32: "U32", mx.uint8: "U8",
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '' }}{% endif %}"
)


def write_shards(directory: Path, tensors: Tensors, shards: int, format_name: str) -> None:
    """model-0000i-of-0000n.safetensors and their index."""
    names = list(tensors)
    size = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard * size : (shard + 1) * size]
        weight_map |= dict.fromkeys(part, file)
        save_sparse(
            directory / file, {name: tensors[name] for name in part}, {"format": format_name}
        )
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def save_target(
    directory: Path, raw: dict[str, Any], tensors: Tensors, shards: int = 1, form: str = "pt"
) -> Path:
    """A target's directory: config.json, sparse weights, generated tokenizer files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    write_shards(directory, tensors, shards, form)
    text = raw.get("text_config", raw)
    vocab: int = text["vocab_size"]
    save_qwen_tokenizer(directory, 248044 if vocab == 248320 else 151643)
    return directory


def save_qwen_tokenizer(directory: Path, first_special: int) -> None:
    """tokenizer.json with a small vocabulary and Qwen's specials from `first_special` on, the
    settings with a chat template, and generation_config.json."""
    specials = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    if first_special == 248044:
        specials |= {f"<|added_{slot}|>": slot for slot in (26, 33)}  # the published mask ids
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": first_special + slot, "content": text, "special": True, **plain}
        for text, slot in sorted(specials.items(), key=lambda item: item[1])
    ]
    vocab = {f"t{index}": index for index in range(64)}
    vocab |= {text: first_special + slot for text, slot in specials.items()}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    whole = {"version": "1.0", "added_tokens": added, "model": model}
    (directory / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    generation = {"eos_token_id": [first_special + 2, first_special], "do_sample": True}
    (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


def qwen3_tensors(raw: Mapping[str, Any]) -> Tensors:
    """The original Qwen3 dense layout."""
    width, vocab = raw["hidden_size"], raw["vocab_size"]
    tensors: Tensors = {
        "model.embed_tokens.weight": ("BF16", [vocab, width]),
        "model.norm.weight": ("BF16", [width]),
    }
    if not raw["tie_word_embeddings"]:
        tensors["lm_head.weight"] = ("BF16", [vocab, width])
    for layer in range(raw["num_hidden_layers"]):
        parts = {**_norms(width), **_attention(raw, gate=False), **_mlp("mlp.", raw)}
        tensors |= {f"model.layers.{layer}.{name}": entry for name, entry in parts.items()}
    return tensors


def qwen35_tensors(raw: Mapping[str, Any]) -> Tensors:
    """The original Qwen3.5 dense layout with its MTP head, and a few tensors of the vision
    tower."""
    text = raw["text_config"]
    width, vocab = text["hidden_size"], text["vocab_size"]
    body = "model.language_model."
    tensors: Tensors = {
        f"{body}embed_tokens.weight": ("BF16", [vocab, width]),
        f"{body}norm.weight": ("BF16", [width]),
        "model.visual.merger.norm.weight": ("BF16", [1152]),
        "model.visual.patch_embed.proj.weight": ("BF16", [1152, 3, 2, 16, 16]),
    }
    if not text["tie_word_embeddings"]:
        tensors["lm_head.weight"] = ("BF16", [vocab, width])
    for layer, kind in enumerate(text["layer_types"]):
        mixer = _gdn(text) if kind == "linear_attention" else _attention(text, gate=True)
        parts = {**_norms(width), **mixer, **_mlp("mlp.", text)}
        tensors |= {f"{body}layers.{layer}.{name}": entry for name, entry in parts.items()}
    return tensors | _mtp_head(text)


def _mtp_head(text: Mapping[str, Any]) -> Tensors:
    width = text["hidden_size"]
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    layer = {**_norms(width), **_attention(text, gate=True), **_mlp("mlp.", text)}
    return {
        "mtp.fc.weight": ("BF16", [width, 2 * width]),
        **{f"mtp.{name}.weight": ("BF16", [width]) for name in names},
        **{f"mtp.layers.0.{name}": entry for name, entry in layer.items()},
    }


def _norms(width: int) -> Tensors:
    names = ("input_layernorm.weight", "post_attention_layernorm.weight")
    return {name: ("BF16", [width]) for name in names}


def _attention(text: Mapping[str, Any], gate: bool) -> Tensors:
    width, head = text["hidden_size"], text["head_dim"]
    q_rows, kv_rows = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    return {
        "self_attn.q_proj.weight": ("BF16", [q_rows * (2 if gate else 1), width]),
        "self_attn.k_proj.weight": ("BF16", [kv_rows, width]),
        "self_attn.v_proj.weight": ("BF16", [kv_rows, width]),
        "self_attn.o_proj.weight": ("BF16", [width, q_rows]),
        "self_attn.q_norm.weight": ("BF16", [head]),
        "self_attn.k_norm.weight": ("BF16", [head]),
    }


def _mlp(prefix: str, text: Mapping[str, Any]) -> Tensors:
    width, inner = text["hidden_size"], text["intermediate_size"]
    return {
        f"{prefix}gate_proj.weight": ("BF16", [inner, width]),
        f"{prefix}up_proj.weight": ("BF16", [inner, width]),
        f"{prefix}down_proj.weight": ("BF16", [width, inner]),
    }


def _gdn(text: Mapping[str, Any]) -> Tensors:
    width, heads = text["hidden_size"], text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = heads * text["linear_value_head_dim"]
    channels = 2 * keys + values
    return {
        "linear_attn.in_proj_qkv.weight": ("BF16", [channels, width]),
        "linear_attn.in_proj_z.weight": ("BF16", [values, width]),
        "linear_attn.in_proj_b.weight": ("BF16", [heads, width]),
        "linear_attn.in_proj_a.weight": ("BF16", [heads, width]),
        "linear_attn.conv1d.weight": ("BF16", [channels, 1, text["linear_conv_kernel_dim"]]),
        "linear_attn.A_log": ("F32", [heads]),
        "linear_attn.dt_bias": ("BF16", [heads]),
        "linear_attn.norm.weight": ("F32", [text["linear_value_head_dim"]]),
        "linear_attn.out_proj.weight": ("BF16", [width, values]),
    }


def converted_tensors(raw: dict[str, Any]) -> Tensors:
    """The layout of an MLX conversion: the names of mlx-lm's own modules, quantized as the
    config's block and overrides say. Nothing is evaluated."""
    module: Any = model_module(raw["model_type"])
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(raw))))
    block = raw["quantization"]

    def parameters(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        override: bool | dict[str, Any] = block.get(path, True)
        return override if hasattr(layer, "to_quantized") else False

    nn.quantize(model, block["group_size"], block["bits"], class_predicate=parameters)
    arrays: Any = tree_flatten(model.parameters())
    return {name: (_stored(name, array), list(array.shape)) for name, array in arrays}


def _stored(name: str, array: mx.array) -> str:
    """mlx-lm's modules start in float32; conversions are bf16 but for the recurrence's A_log."""
    if array.dtype == mx.float32 and not name.endswith("A_log"):
        return "BF16"
    return DTYPES[array.dtype]
