"""Opening a target: quantizations, repaired configs, refused ones; headers before data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.errors import (
    CheckpointError,
    ConfigError,
    DflashError,
    ModelNotFound,
    TensorError,
    UnsupportedModel,
)
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.options import GenerateOptions
from tests.kit.families import CONFIGS, family_config, family_model, load_family, save_family
from tests.kit.scripted import ScriptedDrafter, mixed
from tests.kit.tiny import VOCAB, PieceDetokenizer, assert_varied, prompt, stock_greedy

MXFP4 = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
NVFP4 = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
GATES = {
    f"language_model.model.layers.{layer}.mlp.{name}": {"group_size": 64, "bits": 8}
    for layer in range(4)
    for name in ("gate", "shared_expert_gate")
}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "8bit": ("qwen3", {"group_size": 32, "bits": 8}),
    "mxfp4": ("gpt_oss", MXFP4),
    "mxfp4 with affine routers": ("qwen3_5_moe", MXFP4 | GATES),
    "nvfp4": ("qwen3_5", NVFP4),
    "nvfp4 with an mxfp8 head": (
        "qwen3",
        NVFP4 | {"lm_head": {"group_size": 32, "bits": 8, "mode": "mxfp8"}},
    ),
    "4bit body, plain head and embedding": (
        "llama",
        {"group_size": 32, "bits": 4, "lm_head": False, "model.embed_tokens": False},
    ),
    "4bit head, plain body": ("qwen3", {"group_size": 32, "bits": 4, "model.layers": False}),
}


def decode(opened: LoadedTarget, count: int = 30) -> tuple[list[int], list[int]]:
    """(speculative ids, ids of mlx-lm alone)."""
    ids = prompt(20)
    stock = stock_greedy(opened.target.backbone.model, ids, 60)
    assert_varied(stock)
    drafter = ScriptedDrafter(mixed(VOCAB, 5), stock, 20, 6, tap_ids=(1,))
    options = GenerateOptions(max_tokens=count, block_size=6, gate=False)
    run = Generation(opened.target, ids, PieceDetokenizer(), drafter=drafter, options=options)
    list(run)
    assert 0 < run.stats.accepted < run.stats.drafted
    return run.emitter.token_ids, stock[:count]


def edit_config(directory: Path, **changes: Any) -> dict[str, Any]:
    """Rewrite config.json; None takes a key out. Fields go to the text part where there is one."""
    file = directory / "config.json"
    raw: dict[str, Any] = json.loads(file.read_text())
    text = raw.get("text_config", raw)
    for key, value in changes.items():
        text.pop(key, None)
        if value is not None:
            text[key] = value
    file.write_text(json.dumps(raw))
    return raw


def refused(directory: Path, error: type[DflashError], dtype: str = "auto") -> str:
    with pytest.raises(error) as caught:
        load_family(directory, dtype)
    message = str(caught.value)
    assert str(directory) in message
    return message


@pytest.mark.parametrize("recipe", RECIPES)
def test_quantized_targets(tmp_path: Path, recipe: str) -> None:
    name, quantization = RECIPES[recipe]
    if quantization.get("model.layers") is False:
        layers = {
            path: False
            for path in quantizable(name)
            if path.startswith("model.layers") or path == "model.embed_tokens"
        }
        quantization = {k: v for k, v in quantization.items() if k != "model.layers"} | layers
    save_family(tmp_path, name, quantization=quantization)
    own, stock = decode(load_family(tmp_path))
    assert own == stock


def quantizable(name: str) -> list[str]:
    modules = family_model(family_config(name)).named_modules()
    return [path for path, module in modules if hasattr(module, "to_quantized")]


@pytest.mark.parametrize("name", ["qwen3", "gemma4_text"])
def test_a_tied_quantized_embedding_is_the_head(tmp_path: Path, name: str) -> None:
    """A tied random model repeats itself, so this one compares logits and not ids."""
    quantization = {"group_size": 32, "bits": 4}
    save_family(tmp_path, name, quantization=quantization, tie_word_embeddings=True)
    target = load_family(tmp_path).target
    ids = mx.array([prompt(9)])
    hidden = target.forward_with_taps(ids, target.make_cache()).hidden
    model: Any = target.backbone.model
    assert mx.array_equal(
        target.logits_from_hidden(hidden),
        model(ids, cache=model.make_cache() if hasattr(model, "make_cache") else None),
    )
    assert not hasattr(target.backbone.text, "lm_head")


def test_experts_in_bfloat16_on_the_cpu_are_refused_with_the_way_out(tmp_path: Path) -> None:
    save_family(tmp_path, "qwen3_moe", dtype=mx.bfloat16)
    message = refused(tmp_path, UnsupportedModel, "bfloat16")
    assert "gather_mm" in message and "--dtype float32" in message and "bfloat16" in message
    own, stock = decode(load_family(tmp_path, "float32"))
    assert own == stock
    assert load_family(tmp_path, "auto").target.compute_dtype == mx.float32


def test_quantized_experts_run_in_bfloat16(tmp_path: Path) -> None:
    quantization = {"group_size": 32, "bits": 4}
    save_family(tmp_path, "qwen3_moe", quantization=quantization, dtype=mx.bfloat16)
    own, stock = decode(load_family(tmp_path, "bfloat16"), count=12)
    assert own == stock


def test_mtp_tensors_in_a_converted_qwen3_next_pack(tmp_path: Path) -> None:
    """mlx-lm's strict load fails on them."""
    save_family(tmp_path, "qwen3_next")
    head = {"mtp.fc.weight": mx.ones((64, 128)), "mtp.norm.weight": mx.ones((64,))}
    mx.save_safetensors(str(tmp_path / "model-mtp.safetensors"), head)
    with pytest.raises(ValueError, match="mtp"):
        load_model(tmp_path)
    own, stock = decode(load_family(tmp_path))
    assert own == stock


# Flat and nested rope: mlx-lm would go on with a default of its own and say nothing.

ROPE_MOVES: dict[str, tuple[str, dict[str, Any]]] = {
    "flat qwen3_5": (
        "qwen3_5",
        {"rope_parameters": None, "rope_theta": 100000.0, "partial_rotary_factor": 0.25},
    ),
    "flat qwen3_5_moe": ("qwen3_5_moe", {"rope_parameters": None, "rope_theta": 100000.0}),
    "nested llama": ("llama", {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0}}),
    "nested qwen3_moe": (
        "qwen3_moe",
        {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    ),
    "nested qwen3_next": (
        "qwen3_next",
        {
            "rope_theta": None,
            "partial_rotary_factor": None,
            "rope_parameters": {"rope_theta": 100000.0, "partial_rotary_factor": 0.25},
        },
    ),
    "nested gpt_oss": (
        "gpt_oss",
        {
            "rope_theta": None,
            "rope_scaling": None,
            "rope_parameters": {**CONFIGS["gpt_oss"]["rope_scaling"], "rope_theta": 150000},
        },
    ),
}


@pytest.mark.parametrize("move", ROPE_MOVES)
def test_rope_in_the_place_where_mlx_lm_does_not_look_is_repaired(
    tmp_path: Path, move: str
) -> None:
    """The same weights with the same rope, stated elsewhere, give the same logits."""
    name, changes = ROPE_MOVES[move]
    changes = {k: 777.0 if k == "rope_theta" and v else v for k, v in changes.items()}
    if changes.get("rope_parameters"):
        changes["rope_parameters"] = changes["rope_parameters"] | {"rope_theta": 777.0}
    usual = family_config(name)
    text = usual.get("text_config", usual)
    if "rope_parameters" in text:
        stated = {"rope_parameters": text["rope_parameters"] | {"rope_theta": 777.0}}
    else:
        stated = {"rope_theta": 777.0}
    save_family(tmp_path, name, **stated)
    ids = mx.array([prompt(40)])
    right = logits(load_family(tmp_path), ids)
    assert not read_target_config(tmp_path).repairs.notes
    edit_config(tmp_path, **changes)
    repairs = read_target_config(tmp_path).repairs
    assert len(repairs.notes) == 1 and "777.0" in repairs.notes[0]
    assert str(tmp_path / "config.json") in repairs.notes[0]
    assert mx.array_equal(logits(load_family(tmp_path), ids), right)


def logits(opened: LoadedTarget, ids: mx.array) -> mx.array:
    hidden = opened.target.forward_with_taps(ids, opened.target.make_cache()).hidden
    return opened.target.logits_from_hidden(hidden)


def test_what_the_repair_is_for(tmp_path: Path) -> None:
    """Unrepaired, mlx-lm opens the flat config without a word and with another rope base."""
    save_family(tmp_path, "qwen3_5")
    edit_config(tmp_path, rope_parameters=None, rope_theta=777.0)
    model: Any
    model, _ = load_model(tmp_path)
    assert model.language_model.args.rope_theta == 100000.0
    assert load_family(tmp_path).target.backbone.text.args.rope_theta == 777.0


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen3_5", {"rope_parameters": {"rope_type": "default"}}, "'rope_theta' is missing"),
        ("qwen3", {"rope_theta": None}, "'rope_theta' is missing"),
        ("qwen3_moe", {"rope_theta": None}, "'rope_theta' is missing"),
        ("qwen3_next", {"rope_theta": None}, "'rope_theta' is missing"),
        ("qwen3_5", {"rope_theta": 5e6}, "one of them is wrong"),
        ("llama", {"rope_parameters": {"rope_theta": 5e5}}, "one of them is wrong"),
        ("qwen3", {"rope_parameters": 7}, "expected an object"),
        ("gemma4", {"rope_parameters": None, "rope_theta": 1e6}, "for each layer type"),
        ("gemma4", {"rope_parameters": {"full_attention": {"rope_theta": 1}}}, "sliding_attention"),
        ("gemma4", {"vocab_size": 300}, "'text_config.vocab_size' is 300"),
        ("qwen3_5", {"layer_types": ["full_attention"] * 4}, "full_attention_interval"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 4}, "at layer 3"),
        ("qwen3", {"vocab_size": None}, "'vocab_size' is missing"),
        ("qwen3", {"num_hidden_layers": "4"}, "expected a whole number"),
        ("qwen3", {"model_type": None}, "'model_type' is missing"),
        ("qwen3", {"model_type": 3}, "expected a name"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_right_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], words: str
) -> None:
    raw = family_config(name)
    text = raw.get("text_config", raw)
    for key, value in changes.items():
        text.pop(key, None)
        if value is not None:
            text[key] = value
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert words in refused(tmp_path, ConfigError)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"model_type": "qwen4_exp"}, ["'qwen4_exp'", "gemma4", "qwen3_next"]),
        (
            {"model_type": "qwen3_9_omni", "text_config": {"model_type": "qwen3_5_text"}},
            ["'qwen3_9_omni'", "Its text_config is a 'qwen3_5_text', which is supported"],
        ),
    ],
)
def test_an_unknown_model_type_is_refused_by_name(
    tmp_path: Path, raw: dict[str, Any], words: list[str]
) -> None:
    """A new wrapper's name, with what would be needed."""
    (tmp_path / "config.json").write_text(json.dumps(raw))
    message = refused(tmp_path, UnsupportedModel)
    assert all(word in message for word in words)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "gemma4"])
def test_a_text_config_may_stand_alone(tmp_path: Path, name: str) -> None:
    """The 2.4T model's config.json is one, under a model_type that mlx-lm has no module for."""
    save_family(tmp_path, name)
    raw = json.loads((tmp_path / "config.json").read_text())
    if name == "gemma4":
        del raw["vocab_size"]  # mlx-lm would take 262144
        (tmp_path / "config.json").write_text(json.dumps(raw))
    else:
        (tmp_path / "config.json").write_text(json.dumps(raw["text_config"]))
        assert raw["text_config"]["model_type"] == f"{name}_text"
    own, stock = decode(load_family(tmp_path))
    assert own == stock


# Weights files


def test_a_shard_of_the_index_that_is_missing_is_named(tmp_path: Path) -> None:
    save_family(tmp_path, "qwen3")
    names = [f"model-{index:05}-of-00014.safetensors" for index in range(1, 15)]
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refused(tmp_path, TensorError)
    assert "14 weight files" in message and "and 4 more" in message and names[9] in message
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    assert "is not an index" in refused(tmp_path, TensorError)


def test_weights_under_a_name_that_mlx_lm_does_not_open(tmp_path: Path) -> None:
    save_family(tmp_path, "qwen3")
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    message = refused(tmp_path, ModelNotFound)
    assert "model*.safetensors" in message and "weights.safetensors" in message


def test_a_strict_mismatch_lists_at_most_ten_names(tmp_path: Path) -> None:
    save_family(tmp_path, "qwen3")
    arrays: Any = mx.load(str(tmp_path / "model.safetensors"))
    kept = {name: array for name, array in arrays.items() if "self_attn" not in name}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), kept)
    message = refused(tmp_path, CheckpointError)
    assert "Missing 24 parameters" in message and "and 14 more" in message
    assert message.count("self_attn") == 10


def test_gguf_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    message = refused(tmp_path, UnsupportedModel)
    assert "model-q4.gguf is a GGUF file" in message and "llama.cpp" in message
