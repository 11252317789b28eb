"""A drafter's config.json: what is required, where it is looked up, and what each error names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.errors import ConfigError, ModelNotFound, UnsupportedModel
from dflash_suite.drafters.dflash.config import DrafterConfig, read_drafter_config
from dflash_suite.drafters.dflash.container import DrafterKind
from tests.kit.tiny_drafter import ABSENT, NESTED_KEYS, raw_drafter, write_config

pytestmark = pytest.mark.quick

REQUIRED_V1 = (
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_target_layers",
    "rms_norm_eps",
    "vocab_size",
    "max_position_embeddings",
    "block_size",
    "mask_token_id",
    "target_layer_ids",
)
REQUIRED_V2 = (
    *REQUIRED_V1,
    "sliding_window",
    "conv_group_size",
    "conv_kernel_size",
    "selector_rank",
    "selector_top_k",
)
REQUIRED: list[tuple[DrafterKind, str]] = [("dflash", key) for key in REQUIRED_V1]
REQUIRED += [("dflash2", key) for key in REQUIRED_V2]


def read(directory: Path, raw: dict[str, Any]) -> DrafterConfig:
    return read_drafter_config(write_config(directory, raw))


def config_error(directory: Path, raw: dict[str, Any]) -> str:
    """The one error of this config.json; it names the file."""
    with pytest.raises(ConfigError) as caught:
        read(directory, raw)
    message = str(caught.value)
    assert str(directory / "config.json") in message
    return message


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_the_values_of_a_whole_file(tmp_path: Path, kind: DrafterKind) -> None:
    config = read(tmp_path, raw_drafter(kind))
    assert config.kind == kind
    assert (config.vocab_size, config.hidden_size, config.num_target_layers) == (512, 64, 4)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert (config.num_hidden_layers, config.intermediate_size) == (2, 128)
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (6, 511, (0, 2))
    assert (config.rope.theta, config.rms_norm_eps) == (10000.0, 1e-6)
    assert (config.selector is not None) == (kind == "dflash2")
    if config.selector is not None:
        assert (config.selector.conv_kernel_size, config.selector.conv_group_size) == (2, 16)
        assert (config.selector.selector_rank, config.selector.selector_top_k) == (8, 4)


@pytest.mark.parametrize(("kind", "key"), REQUIRED)
@pytest.mark.parametrize("empty", [ABSENT, None], ids=["absent", "null"])
def test_a_missing_key_is_named(tmp_path: Path, kind: DrafterKind, key: str, empty: object) -> None:
    message = config_error(tmp_path, raw_drafter(kind, **{key: empty}))
    assert f"'{key}'" in message and "missing" in message
    if key in NESTED_KEYS:
        assert f"'dflash_config.{key}'" in message


@pytest.mark.parametrize(("kind", "key"), REQUIRED)
@pytest.mark.parametrize("value", ["8", True, [True], {}, float("nan")])
def test_a_value_of_the_wrong_type_is_named(
    tmp_path: Path, kind: DrafterKind, key: str, value: object
) -> None:
    message = config_error(tmp_path, raw_drafter(kind, **{key: value}))
    label = f"dflash_config.{key}" if key in NESTED_KEYS else key
    assert f"'{label}' is {value!r}" in message


@pytest.mark.parametrize("key", sorted(set(REQUIRED_V2) - {"rms_norm_eps", "target_layer_ids"}))
@pytest.mark.parametrize("value", [-1, 1.5])
def test_counts_are_whole_and_not_negative(tmp_path: Path, key: str, value: object) -> None:
    assert f"{key}' is {value}" in config_error(tmp_path, raw_drafter("dflash2", **{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_causal", "no"),
        ("causal", 1),
        ("attention_bias", "false"),
        ("input_embedding_scale", "2"),
        ("output_multiplier", [1.0]),
        ("final_logit_softcapping", float("inf")),
        ("final_logit_softcapping", -30.0),
        ("rope_parameters", [1]),
        ("rope_scaling", "yarn"),
    ],
)
def test_an_optional_key_of_the_wrong_type_is_named(
    tmp_path: Path, key: str, value: object
) -> None:
    message = config_error(tmp_path, raw_drafter("dflash", **{key: value}))
    assert f"{key}' is {value!r}" in message


def test_dflash_config_must_be_an_object(tmp_path: Path) -> None:
    raw = raw_drafter("dflash") | {"dflash_config": [8]}
    assert "'dflash_config' is [8]" in config_error(tmp_path, raw)


@pytest.mark.parametrize("value", [5, "DFlashDraftModel", [["DFlashDraftModel"]]])
def test_architectures_must_be_a_list_of_names(tmp_path: Path, value: object) -> None:
    message = config_error(tmp_path, raw_drafter("dflash") | {"architectures": value})
    assert f"'architectures' is {value!r}" in message


def test_no_file_is_told_apart_from_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json does not exist"):
        read_drafter_config(tmp_path)
    for text in ("{", '["a"]', "\x00"):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"config\.json"):
            read_drafter_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_drafter_config(tmp_path)


def test_block_size_is_looked_up_nested_first(tmp_path: Path) -> None:
    """A drafter that declares 5 inside dflash_config must not run at another size."""
    nested = raw_drafter("dflash", block_size=5)
    assert read(tmp_path, nested).block_size == 5
    assert read(tmp_path, nested | {"block_size": 5}).block_size == 5
    both = config_error(tmp_path, nested | {"block_size": 16})
    assert "'dflash_config.block_size' is 5 and 'block_size' is 16" in both
    flat = raw_drafter("dflash", block_size=ABSENT) | {"block_size": 16}
    assert read(tmp_path, flat).block_size == 16
    null = raw_drafter("dflash", block_size=None) | {"block_size": 16}
    assert read(tmp_path, null).block_size == 16


def test_taps_and_mask_id_are_found_at_the_top_level_too(tmp_path: Path) -> None:
    raw = raw_drafter("dflash", target_layer_ids=ABSENT, mask_token_id=ABSENT)
    config = read(tmp_path, raw | {"target_layer_ids": [1, 3], "mask_token_id": 0})
    assert (config.target_layer_ids, config.mask_token_id) == ((1, 3), 0)


def test_a_block_has_room_for_a_draft(tmp_path: Path) -> None:
    assert read(tmp_path, raw_drafter("dflash", block_size=2)).block_size == 2
    assert "is 1, expected at least 2" in config_error(tmp_path, raw_drafter(block_size=1))


@pytest.mark.parametrize(
    ("change", "theta", "scaling"),
    [
        ({"rope_parameters": {"rope_theta": 5e6}}, 5e6, ("default", {})),
        ({"rope_parameters": None, "rope_theta": 1e7}, 1e7, ("default", {})),
        ({"rope_parameters": ABSENT, "rope_theta": 1e7}, 1e7, ("default", {})),
        ({"rope_parameters": {}, "rope_theta": 3e5}, 3e5, ("default", {})),
        ({"rope_parameters": {"rope_theta": 1e7}, "rope_theta": 1e7}, 1e7, ("default", {})),
        (
            {
                "rope_parameters": ABSENT,
                "rope_theta": 1e4,
                "rope_scaling": {"type": "linear", "factor": 4.0},
            },
            1e4,
            ("linear", {"factor": 4.0}),
        ),
    ],
)
def test_rope_is_nested_or_flat(
    tmp_path: Path, change: dict[str, Any], theta: float, scaling: tuple[str, dict[str, Any]]
) -> None:
    config = read(tmp_path, raw_drafter("dflash", **change))
    assert (config.rope.theta, config.rope.kind, config.rope.settings) == (theta, *scaling)


@pytest.mark.parametrize("parameters", [ABSENT, {}, {"rope_type": "default"}])
def test_rope_without_a_theta_is_an_error(tmp_path: Path, parameters: object) -> None:
    """A default of 10000 or 1e7 would only cost acceptance, so nobody would notice."""
    message = config_error(tmp_path, raw_drafter("dflash", rope_parameters=parameters))
    assert "'rope_parameters.rope_theta' or 'rope_theta' is missing" in message


@pytest.mark.parametrize("theta", [0, -1.0, "1e6", True])
def test_a_theta_that_cannot_be_one_is_an_error(tmp_path: Path, theta: object) -> None:
    raw = raw_drafter("dflash", rope_parameters={"rope_theta": theta})
    assert "rope_theta' is" in config_error(tmp_path, raw)


@pytest.mark.parametrize(
    "value",
    [
        ["full_attention"],
        ["full_attention"] * 3,
        ["full_attention", "linear_attention"],
        "full_attention",
        ["full_attention", 1],
        [],
    ],
)
def test_layer_types_fit_the_layers(tmp_path: Path, value: object) -> None:
    assert "'layer_types'" in config_error(tmp_path, raw_drafter("dflash", layer_types=value))


def test_without_layer_types_every_layer_is_full(tmp_path: Path) -> None:
    config = read(tmp_path, raw_drafter("dflash", layer_types=ABSENT))
    assert config.layer_types == ("full_attention", "full_attention")
    assert (config.sliding_window, config.context_rows) == (None, None)


def test_the_window_counts_only_where_a_layer_slides(tmp_path: Path) -> None:
    full = ["full_attention", "full_attention"]
    mixed = ["sliding_attention", "full_attention"]
    sliding = ["sliding_attention", "sliding_attention"]
    for layer_types, window, rows in ((full, None, None), (mixed, 9, None), (sliding, 9, 8)):
        config = read(tmp_path, raw_drafter("dflash", layer_types=layer_types, sliding_window=9))
        assert (config.sliding_window, config.context_rows) == (window, rows)


def test_sliding_layers_need_a_window_that_is_on(tmp_path: Path) -> None:
    off = raw_drafter("dflash2", use_sliding_window=False)
    assert "'use_sliding_window' is false" in config_error(tmp_path, off)
    assert "sliding_window" in config_error(tmp_path, raw_drafter("dflash2", sliding_window=1))


@pytest.mark.parametrize(
    ("stated", "causal"),
    [
        ({}, [True, False]),
        ({"is_causal": None}, [True, False]),
        ({"is_causal": True}, [True, True]),
        ({"is_causal": False}, [False, False]),
        ({"causal": True}, [True, True]),
        ({"causal": False}, [False, False]),
    ],
)
def test_causality_is_resolved_for_each_layer(
    tmp_path: Path, stated: dict[str, Any], causal: list[bool]
) -> None:
    """Unstated means sliding layers causal, full ones bidirectional."""
    mixed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    config = read(tmp_path, raw_drafter("dflash", **mixed, **stated))
    assert [config.is_layer_causal(index) for index in range(2)] == causal


def test_unknown_keys_are_tolerated(tmp_path: Path) -> None:
    raw = raw_drafter("dflash2", use_cache=True, auto_map={"AutoModel": "dflash.DFlash"})
    raw |= {"transformers_version": "5.15.0", "bos_token_id": None, "model_type": "anything"}
    raw["dflash_config"]["note"] = [1, {"a": None}]
    assert read(tmp_path, raw) == read(tmp_path, raw_drafter("dflash2"))


def test_the_mask_id_is_in_the_vocabulary(tmp_path: Path) -> None:
    assert read(tmp_path, raw_drafter(mask_token_id=0)).mask_token_id == 0
    assert "mask_token_id 512" in config_error(tmp_path, raw_drafter(mask_token_id=512))


@pytest.mark.parametrize("taps", [[], [2, 0], [1, 1], [-1, 2]])
def test_taps_are_strictly_increasing(tmp_path: Path, taps: list[int]) -> None:
    message = config_error(tmp_path, raw_drafter("dflash", target_layer_ids=taps))
    assert f"target_layer_ids {taps} must be strictly increasing" in message


def test_contradictions_of_sizes_are_named(tmp_path: Path) -> None:
    heads = config_error(tmp_path, raw_drafter(num_key_value_heads=3))
    assert "4 attention heads are not a multiple of 3" in heads
    assert "conv_group_size 24" in config_error(tmp_path, raw_drafter(conv_group_size=24))
    assert "selector_top_k 513" in config_error(tmp_path, raw_drafter(selector_top_k=513))
    assert read(tmp_path, raw_drafter(selector_top_k=512)).selector is not None


def test_the_kind_comes_from_architectures_and_keys_never_from_model_type(tmp_path: Path) -> None:
    v2_by_name = raw_drafter("dflash2") | {"architectures": ["Qwen3DFlash2DraftModel"]}
    assert read(tmp_path, v2_by_name).kind == "dflash2"
    # A v1 loader that ignores unknown keys would open this file and draft worse (formats 0.9).
    v2_by_keys = raw_drafter("dflash2") | {"architectures": ["DFlashDraftModel"]}
    assert read(tmp_path, v2_by_keys).kind == "dflash2"
    v1_by_keys = raw_drafter("dflash") | {"architectures": None}
    assert read(tmp_path, v1_by_keys).kind == "dflash"
    # A DFlash2 by name whose keys are all gone must not pass for a v1.
    bare = raw_drafter("dflash") | {"architectures": ["DFlash2DraftModel"]}
    assert "conv_kernel_size" in config_error(tmp_path, bare)


def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    raw = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64}
    with pytest.raises(UnsupportedModel, match=r"is a target \(qwen3\) and not a drafter"):
        read(tmp_path, raw)


def test_numbers_keep_their_value(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "input_embedding_scale": 8,
        "output_multiplier": 0.196,
        "rms_norm_eps": 1e-5,
    }
    config = read(tmp_path, raw_drafter(final_logit_softcapping=20.0, **changes))
    assert config.input_embedding_scale == 8.0 and config.output_multiplier == 0.196
    assert config.final_logit_softcapping == 20.0 and config.rms_norm_eps == 1e-5
    top = raw_drafter("dflash") | {"final_logit_softcapping": 30.0}
    assert read(tmp_path, top).final_logit_softcapping == 30.0
    top["dflash_config"]["final_logit_softcapping"] = 20.0
    assert read(tmp_path, top).final_logit_softcapping == 20.0
    default = read(tmp_path, raw_drafter("dflash"))
    assert (default.input_embedding_scale, default.output_multiplier) == (1.0, 1.0)
    assert default.final_logit_softcapping is None
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == default.vocab_size
