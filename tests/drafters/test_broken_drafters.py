"""Broken variants of published drafters, each refused with the message that tells what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.errors import (
    CheckpointError,
    ConfigError,
    ModelNotFound,
    TensorError,
    UnsupportedModel,
)
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.load import check_files
from tests.kit.published import Tensors, published_config, published_tensors, save_published

pytestmark = pytest.mark.quick

V1 = "Qwen3-4B-DFlash-b16"
GEN_B = "Qwen3.5-4B-DFlash.genB"
V2 = "Qwen3.8-27B-DFlash2"
PACKED = "Qwen3.8-27B-DFlash2-4bit.mlx"
GPT_OSS = "gpt-oss-20b-DFlash"
GEMMA = "gemma-4-26B-A4B-it-DFlash"
GONE: Any = object()
PREDECESSOR = "candidate_selector.predecessor_codebook"


@dataclass(frozen=True)
class Variant:
    """base: the published drafter; config, nested: keys set (GONE takes one out); tensors: the
    same, by name."""

    base: str
    error: type[CheckpointError]
    words: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    nested: dict[str, Any] = field(default_factory=dict)
    tensors: Callable[[Tensors], None] | None = None


def bad_config(base: str, *words: str, nested: Any = None, **config: Any) -> Variant:
    return Variant(base, ConfigError, words, config, nested or {})


def foreign(base: str, *words: str, nested: Any = None, **config: Any) -> Variant:
    return Variant(base, UnsupportedModel, words, config, nested or {})


def bad_tensors(base: str, edit: Callable[[Tensors], None], *words: str) -> Variant:
    return Variant(base, TensorError, words, tensors=edit)


def without(*names: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return edit


def having(name: str, dtype: str, *shape: int) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors[name] = (dtype, list(shape))

    return edit


def without_all(part: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return edit


SPECULATORS = {"speculators_config": {"algorithm": "dflash"}, "architectures": ["DFlashSpeculator"]}
VARIANTS: dict[str, Variant] = {
    # What it was trained with: missing
    "no taps": bad_config(V1, "target_layer_ids' is missing", nested={"target_layer_ids": GONE}),
    "no mask": bad_config(V1, "mask_token_id' is missing", nested={"mask_token_id": GONE}),
    "no block, flat": bad_config(V1, "'block_size' is missing", block_size=GONE),
    "no block, nested": bad_config(GEN_B, "block_size' is missing", nested={"block_size": GONE}),
    "no target layers": bad_config(V1, "'num_target_layers' is missing", num_target_layers=GONE),
    "no rope, flat": bad_config(V1, "'rope_theta' is missing", rope_theta=GONE),
    "no rope, nested": bad_config(GEN_B, "'rope_theta' is missing", rope_parameters=GONE),
    "rope without theta": bad_config(V2, "rope_theta", rope_parameters={"rope_type": "default"}),
    "no head_dim": bad_config(V1, "'head_dim' is missing", head_dim=GONE),
    "no vocabulary": bad_config(V1, "'vocab_size' is missing", vocab_size=GONE),
    "no window": bad_config(GEN_B, "'sliding_window' is missing", sliding_window=None),
    "no layer types": bad_config(GEN_B, "'layer_types' is missing", layer_types=GONE),
    "no selector rank": bad_config(V2, "selector_rank' is missing", nested={"selector_rank": GONE}),
    "no conv kernel": bad_config(V2, "conv_kernel_size", nested={"conv_kernel_size": GONE}),
    "several at once": bad_config(
        V1,
        "target_layer_ids' is missing",
        "mask_token_id' is missing",
        "'block_size' is missing",
        "'num_target_layers' is missing",
        "'rope_theta' is missing",
        block_size=GONE,
        num_target_layers=GONE,
        rope_theta=GONE,
        nested={"target_layer_ids": GONE, "mask_token_id": GONE},
    ),
    # ... contradictory, or nonsense
    "two block sizes": bad_config(V1, "is 8 and", "is 16", "contradict", nested={"block_size": 8}),
    "two masks": bad_config(V1, "mask_token_id", "contradict", mask_token_id=5),
    "two tap lists": bad_config(V1, "target_layer_ids", "contradict", target_layer_ids=[1, 2]),
    "two thetas": bad_config(V1, "contradict", rope_parameters={"rope_theta": 5e6}),
    "two causalities": bad_config(V2, "contradict", nested={"causal": True}),
    "mask outside": bad_config(V1, "151936", nested={"mask_token_id": 151936}),
    "negative mask": bad_config(V1, "mask_token_id' is -1", nested={"mask_token_id": -1}),
    "theta zero": bad_config(V1, "'rope_theta' is 0", rope_theta=0),
    "block of one": bad_config(V1, "'block_size' is 1", block_size=1),
    "block as text": bad_config(V1, "'block_size' is '16'", block_size="16"),
    "taps fall": bad_config(V1, "strictly increasing", nested={"target_layer_ids": [9, 1]}),
    "taps as text": bad_config(V1, "list of whole numbers", nested={"target_layer_ids": "1,9"}),
    "no tap at all": bad_config(V1, "not empty", nested={"target_layer_ids": []}),
    "one type too few": bad_config(V1, "4 entries", layer_types=["full_attention"] * 4),
    "unknown type": bad_config(V1, "'layer_types'", layer_types=["linear_attention"] * 5),
    "window off": bad_config(GEN_B, "'use_sliding_window'", use_sliding_window=False),
    "heads": bad_config(V1, "not a multiple", num_key_value_heads=5),
    "conv groups": bad_config(V2, "conv_group_size 24", nested={"conv_group_size": 24}),
    "too many candidates": bad_config(V2, "selector_top_k", nested={"selector_top_k": 248321}),
    "nested is a list": bad_config(V1, "expected an object", dflash_config=[1]),
    "rope is a list": bad_config(V1, "expected an object", rope_scaling=[1]),
    "architectures": bad_config(V1, "expected a list of names", architectures="DFlash"),
    "unknown rope": bad_config(V1, "no rope can be built", rope_scaling={"rope_type": "spiral"}),
    "yarn without factor": bad_config(GPT_OSS, "'factor'", rope_scaling={"rope_type": "yarn"}),
    "odd bits": bad_config(PACKED, "bits 7", quantization={"group_size": 64, "bits": 7}),
    "odd group": bad_config(PACKED, "group_size 48", quantization={"group_size": 48, "bits": 4}),
    "mxfp4 of 64": bad_config(
        PACKED, "mode 'mxfp4'", quantization={"group_size": 64, "bits": 4, "mode": "mxfp4"}
    ),
    "odd override": bad_config(
        PACKED, "quantization.fc", quantization={"group_size": 64, "bits": 4, "fc": {"bits": 8}}
    ),
    # Other projects' containers and methods
    "speculators": foreign(V1, "speculators container", "count from 1", **SPECULATORS),
    "muse": foreign(V1, "Muse assistant", model_type="muse_glimmer_assistant"),
    "laguna": foreign(V1, "Laguna", model_type="laguna"),
    "mimo": foreign(V1, "MiMo", architectures=["MiMoDFlashDraftModel"]),
    "domino": foreign(V1, "Domino", nested={"projector_type": "domino"}),
    "dspark": foreign(V1, "DSpark", nested={"projector_type": "dspark"}),
    "dspark by name": foreign(V1, "DSpark", architectures=["Qwen3DSparkModel"]),
    "markov": foreign(V1, "DSpark", markov_rank=64),
    "another projector": foreign(V1, "'ring'", nested={"projector_type": "ring"}),
    "eagle": foreign(V1, "EAGLE", nested={"eagle_aux_hidden_state_layer_ids": [2, 10]}),
    "mtp head": foreign(V1, "--speculation mtp", model_type="qwen3_5_mtp"),
    "compressed-tensors": foreign(
        V1, "compressed-tensors", quantization_config={"quant_method": "compressed-tensors"}
    ),
    "modelopt": foreign(V1, "modelopt", quantization_config={"quant_method": "modelopt"}),
    "fp8": foreign(V1, "fp8", quantization_config={"quant_method": "fp8"}),
    "a plain model": foreign(
        V1, "not a DFlash drafter", architectures=["Qwen3ForCausalLM"], dflash_config=GONE
    ),
    # Keys that change the arithmetic
    "anchor predicts": foreign(V1, "sample_from_anchor", sample_from_anchor=True),
    "fc norm": foreign(V1, "fc_layernorm", nested={"fc_layernorm": True}),
    "sinks": foreign(V1, "attention_sink_bias", attention_sink_bias=True),
    "value scale": foreign(V1, "attention_value_scale", attention_value_scale=0.5),
    "swa": foreign(V1, "swa_window_size", swa_window_size=128),
    "partial rope": foreign(V1, "partial_rotary_factor", partial_rotary_factor=0.25),
    "partial rope, nested": foreign(
        V2, "partial_rotary", rope_parameters={"rope_theta": 1e7, "partial_rotary_factor": 0.5}
    ),
    "gelu": foreign(V1, "hidden_act", hidden_act="gelu"),
    "reduced vocabulary": foreign(V1, "draft_vocab_size", draft_vocab_size=32000),
    "selector vocabulary": foreign(V2, "selector_vocab", nested={"selector_vocab_size": 248077}),
    "another width": foreign(V1, "target_hidden_size", target_hidden_size=4096),
    # Tensors
    "no fc": bad_tensors(V1, without("fc.weight"), "1 missing", "fc.weight [2560, 12800]"),
    "a layer gone": bad_tensors(V1, without_all("layers.4."), "11 missing", "and 1 more"),
    "all layers gone": bad_tensors(V1, without_all("layers."), "55 missing", "and 45 more"),
    "no codebook": bad_tensors(V2, without(PREDECESSOR), "1 missing", PREDECESSOR),
    "v2 without its own": bad_tensors(V2, without_all("_conv."), "20 missing"),
    "taps of another": bad_tensors(
        V1, having("fc.weight", "BF16", 2560, 15360), "misshapen", "[2560, 12800]", "[2560, 15360]"
    ),
    "a stray tensor": bad_tensors(V1, having("extra.weight", "BF16", 3), "nothing uses", "extra"),
    "v2 tensors in v1": bad_tensors(
        V1, having(PREDECESSOR, "BF16", 9, 9), "nothing uses", PREDECESSOR
    ),
    "gated heads": bad_tensors(
        V1, having("layers.0.self_attn.g_proj.weight", "BF16", 32, 2560), "g_proj", "Laguna"
    ),
    "a head of its own": bad_tensors(V1, having("lm_head.weight", "BF16", 9, 9), "speculators"),
    "muse names": bad_tensors(V1, having("encoder.fc.weight", "BF16", 9, 9), "Muse assistant"),
    "packed for vllm": bad_tensors(
        V1, having("fc.weight_packed", "I32", 9, 9), "compressed-tensors"
    ),
    "a mask of its own": bad_tensors(V1, having("mask_embedding", "BF16", 2560), "Domino"),
    "integers": bad_tensors(V1, having("norm.weight", "I32", 2560), "another dtype", "I32"),
    "fp8 weights": bad_tensors(V1, having("fc.weight", "F8_E4M3", 2560, 12800), "F8_E4M3"),
    "biases gone": bad_tensors(GPT_OSS, without_all("_proj.bias"), "32 missing"),
    "biases not announced": bad_tensors(
        V1, having("layers.0.self_attn.q_proj.bias", "BF16", 4096), "nothing uses", "q_proj.bias"
    ),
    "the same name twice": bad_tensors(
        V1, having("model.norm.weight", "BF16", 2560), "there twice", "model.norm.weight"
    ),
    "scales of another group": bad_tensors(
        PACKED, having("fc.scales", "BF16", 5120, 399), "misshapen", "fc.weight"
    ),
    "biases of the packing gone": bad_tensors(PACKED, without("fc.biases"), "1 missing", "fc.b"),
    "packed as floats": bad_tensors(PACKED, having("fc.weight", "BF16", 5120, 3200), "than U32"),
    "scales gone": bad_tensors(PACKED, without("fc.scales"), "misshapen", "fc.biases"),
    "not as announced": Variant(
        PACKED,
        TensorError,
        ("fc is packed as 4 bits in groups of 64", "config.json says 8 bits"),
        {
            "quantization": {"group_size": 64, "bits": 4, "fc": {"group_size": 64, "bits": 8}},
            "quantization_config": GONE,
        },
    ),
    "softcap as text": bad_config(GEMMA, "final_logit_softcapping", final_logit_softcapping="30"),
}  # fmt: skip


def edit(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        if value is GONE:
            base.pop(key, None)
        else:
            base[key] = copy.deepcopy(value)
    return base


def save_variant(directory: Path, variant: Variant) -> Path:
    config = edit(published_config(variant.base), variant.config)
    if variant.nested:
        edit(config["dflash_config"], variant.nested)
    tensors = published_tensors(variant.base)
    if variant.tensors is not None:
        variant.tensors(tensors)
    return save_published(directory, variant.base, config, tensors)


def refusal(directory: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        check_files(read_drafter_config(directory))
    return caught.value


@pytest.mark.parametrize("name", VARIANTS)
def test_broken_variants(tmp_path: Path, name: str) -> None:
    variant = VARIANTS[name]
    error = refusal(save_variant(tmp_path, variant))
    assert type(error) is variant.error, error
    message = str(error)
    assert str(tmp_path) in message
    for word in variant.words:
        assert word in message, message
    assert len(message) < 2500


def test_there_are_enough_of_them_and_the_unbroken_ones_pass(tmp_path: Path) -> None:
    assert len(VARIANTS) >= 60
    for base in {variant.base for variant in VARIANTS.values()}:
        check_files(read_drafter_config(save_published(tmp_path / base, base)))


def test_the_config_is_refused_before_the_weights_are_looked_for(tmp_path: Path) -> None:
    directory = save_variant(tmp_path, VARIANTS["no taps"])
    (directory / "model.safetensors").unlink()
    assert "target_layer_ids" in str(refusal(directory))
    directory = save_published(tmp_path / "fine", V1)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="has no weights"):
        check_files(read_drafter_config(directory))


def test_gguf(tmp_path: Path) -> None:
    (tmp_path / "dflash-Q8_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModel, match=r"dflash-Q8_0\.gguf is a GGUF file"):
        read_drafter_config(tmp_path)


def test_neutral_values_of_such_keys_pass(tmp_path: Path) -> None:
    config = published_config(V1) | {
        "sample_from_anchor": False,
        "draft_vocab_size": 151936,
        "target_hidden_size": 2560,
        "partial_rotary_factor": 1.0,
        "markov_rank": 0,
        "fc_layernorm": None,
    }
    config["dflash_config"]["projector_type"] = "dflash"
    check_files(read_drafter_config(save_published(tmp_path, V1, config)))


def test_biases_are_there_iff_the_file_has_them_where_the_config_is_silent(tmp_path: Path) -> None:
    config = published_config(GPT_OSS)
    del config["attention_bias"]
    resolved, _ = check_files(read_drafter_config(save_published(tmp_path / "a", GPT_OSS, config)))
    assert resolved.attention_bias
    tensors = published_tensors(GPT_OSS)
    without_all("_proj.bias")(tensors)
    silent = save_published(tmp_path / "b", GPT_OSS, config, tensors)
    assert not check_files(read_drafter_config(silent))[0].attention_bias


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:5], "too small"),
        (lambda data: data[:2000], "truncated"),
        (lambda data: (2**40).to_bytes(8, "little") + data[8:], "truncated"),
        (lambda data: data[:8] + b"x" + data[9:], "not JSON"),
    ],
)
def test_damaged_headers(tmp_path: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    directory = save_published(tmp_path, V1)
    file = directory / "model.safetensors"
    with file.open("rb") as stream:
        start = stream.read(20_000)
    file.write_bytes(damage(start))
    message = str(refusal(directory))
    assert words in message and str(file) in message
