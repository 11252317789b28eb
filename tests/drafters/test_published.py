"""Every published config.json read to the right kind and values, and its tensors accounted for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import ConfigError, DrafterMismatch, UnsupportedModel
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.load import check_files
from dflash_suite.drafters.guards import check_pair
from tests.kit.published import (
    DATA,
    DRAFTERS,
    published_config,
    published_tensors,
    save_published,
    save_sparse,
)

pytestmark = pytest.mark.quick

REFUSED = {
    "GLM-5.3-Flash-DFlash2",
    "Qwen3-8B-speculator.dflash",
    "Qwen3.8-27B-MTP-8bit.mlx",
}
GEN_B_TAPS_32 = (1, 5, 9, 13, 17, 21, 25, 29)
# kind, block, taps, mask, theta, heads/kv/head_dim, sliding layers + full layers, window, target
EXPECTED = {
    "Qwen3-4B-DFlash-b16": (
        "dflash", 16, (1, 9, 17, 25, 33), 151669, 1e6, (32, 8, 128), (0, 5), None, 36),
    "Qwen3-8B-DFlash-b16": (
        "dflash", 16, (1, 9, 17, 25, 33), 151669, 1e6, (32, 8, 128), (0, 5), None, 36),
    "Qwen3-Coder-30B-A3B-DFlash": (
        "dflash", 16, (1, 12, 23, 34, 45), 151669, 1e7, (32, 4, 128), (0, 8), None, 48),
    "Qwen3.5-27B-DFlash.genA": (
        "dflash", 16, (1, 16, 31, 46, 61), 248070, 5e6, (32, 8, 128), (0, 5), None, 64),
    "Qwen3.5-35B-A3B-DFlash.genA": (
        "dflash", 16, (1, 10, 19, 28, 37), 248070, 1e7, (32, 4, 128), (0, 8), None, 40),
    "Qwen3.5-4B-DFlash.genA": (
        "dflash", 16, (1, 8, 15, 22, 29), 248070, 1e7, (32, 8, 128), (0, 5), None, 32),
    "Qwen3.5-4B-DFlash.genB": (
        "dflash", 16, GEN_B_TAPS_32, 248077, 1e7, (32, 8, 128), (5, 1), 4096, 32),
    "Qwen3.5-9B-DFlash.genA": (
        "dflash", 16, (1, 8, 15, 22, 29), 248070, 1e7, (32, 8, 128), (0, 5), None, 32),
    "Qwen3.5-9B-DFlash.genB": (
        "dflash", 16, GEN_B_TAPS_32, 248077, 1e7, (32, 8, 128), (5, 1), 4096, 32),
    "Qwen3.6-27B-DFlash": (
        "dflash", 16, (1, 16, 31, 46, 61), 248070, 1e7, (32, 8, 128), (4, 1), 2048, 64),
    "Qwen3.6-35B-A3B-DFlash.genB": (
        "dflash", 16, (1, 6, 11, 16, 22, 27, 32, 37), 248077, 1e7, (32, 8, 128), (5, 1), 4096, 40),
    "Qwen3.8-27B-DFlash2": (
        "dflash2", 8, (5, 19, 33, 47, 61), 248070, 1e7, (32, 8, 128), (5, 0), 2048, 64),
    "Qwen3.8-27B-DFlash2-4bit.mlx": (
        "dflash2", 8, (5, 19, 33, 47, 61), 248070, 1e7, (32, 8, 128), (5, 0), 2048, 64),
    "gemma-4-26B-A4B-it-DFlash": (
        "dflash", 16, (1, 6, 11, 17, 22, 27), 4, 1e6, (32, 8, 128), (4, 1), 2048, 30),
    "gpt-oss-20b-DFlash": (
        "dflash", 8, (1, 6, 11, 16, 21), 200000, 150000.0, (64, 8, 64), (0, 8), None, 24),
}  # fmt: skip
# model_type, vocabulary, layers, hidden size, eos ids
TARGETS = {
    "Qwen3-4B": ("qwen3", 151936, 36, 2560, {151645}),
    "Qwen3-8B": ("qwen3", 151936, 36, 4096, {151645}),
    "Qwen3-Next-80B-A3B-Instruct": ("qwen3_next", 151936, 48, 2048, {151645}),
    "Qwen3.5-0.8B": ("qwen3_5", 248320, 24, 1024, {248044}),
    "Qwen3.5-2B": ("qwen3_5", 248320, 24, 2048, {248044}),
    "Qwen3.5-4B": ("qwen3_5", 248320, 32, 2560, {248044}),
    "Qwen3.5-9B": ("qwen3_5", 248320, 32, 4096, {248044}),
    "Qwen3.5-27B": ("qwen3_5", 248320, 64, 5120, {248044}),
    "mlx-community.Qwen3.6-35B-A3B-4bit": ("qwen3_5_moe", 248320, 40, 2048, {248044}),
    "mlx-community.Qwen3.8-27B-4bit": ("qwen3_5", 248320, 64, 5120, {248046, 248044}),
}
FITS = {
    # By every size that a config.json states this drafter fits; that it was trained for the Coder
    # stands in its name alone.
    "Qwen3-Next-80B-A3B-Instruct": ["Qwen3-Coder-30B-A3B-DFlash"],
    "Qwen3-4B": ["Qwen3-4B-DFlash-b16"],
    "Qwen3-8B": ["Qwen3-8B-DFlash-b16"],
    "Qwen3.5-4B": ["Qwen3.5-4B-DFlash.genA", "Qwen3.5-4B-DFlash.genB"],
    "Qwen3.5-9B": ["Qwen3.5-9B-DFlash.genA", "Qwen3.5-9B-DFlash.genB"],
    "Qwen3.5-27B": [
        "Qwen3.5-27B-DFlash.genA",
        "Qwen3.6-27B-DFlash",
        "Qwen3.8-27B-DFlash2",
        "Qwen3.8-27B-DFlash2-4bit.mlx",
    ],
    "mlx-community.Qwen3.6-35B-A3B-4bit": [
        "Qwen3.5-35B-A3B-DFlash.genA",
        "Qwen3.6-35B-A3B-DFlash.genB",
    ],
}


def test_every_published_drafter_is_in_these_tables() -> None:
    assert set(DRAFTERS) == set(EXPECTED) | REFUSED
    assert {f"target.{name}.json" for name in TARGETS} == {f.name for f in DATA.glob("target.*")}


@pytest.mark.parametrize("name", EXPECTED)
def test_kind_and_values(tmp_path: Path, name: str) -> None:
    kind, block, taps, mask, theta, heads, (sliding, full), window, layers = EXPECTED[name]
    config = read_drafter_config(save_published(tmp_path, name))
    assert (config.kind, config.block_size, config.target_layer_ids) == (kind, block, taps)
    assert (config.mask_token_id, config.rope.theta) == (mask, theta)
    found = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    assert found == heads
    types = ["sliding_attention"] * sliding + ["full_attention"] * full
    assert list(config.layer_types) == types
    assert (config.sliding_window, config.num_target_layers) == (window, layers)
    causal = [False] * 5 if kind == "dflash2" else [True] * sliding + [False] * full
    assert [config.is_layer_causal(index) for index in range(len(types))] == causal
    gemma, gpt_oss = name.startswith("gemma"), name.startswith("gpt-oss")
    assert config.final_logit_softcapping == (30.0 if gemma else None)
    assert config.attention_bias == gpt_oss
    assert (config.rope.kind == "yarn") == gpt_oss
    if config.selector is not None:
        assert (config.selector.conv_kernel_size, config.selector.conv_group_size) == (2, 16)
        assert (config.selector.selector_rank, config.selector.selector_top_k) == (256, 16)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tensor_is_accounted_for(tmp_path: Path, name: str) -> None:
    """Names, shapes and dtypes, over files of full size that hold no data."""
    directory = save_published(tmp_path, name)
    _, headers = check_files(read_drafter_config(directory))
    assert len(headers) == len(published_tensors(name))


def test_the_published_file_sizes(tmp_path: Path) -> None:
    """What a sparse file stands for: the sizes that were published."""
    sizes = {"Qwen3-4B-DFlash-b16": 1_074_860_568, "Qwen3.8-27B-DFlash2-4bit.mlx": 1_082_862_080}
    for name, size in sizes.items():
        file = save_sparse(tmp_path / f"{name}.safetensors", published_tensors(name))
        assert abs(file.stat().st_size - size) < 30_000  # header and metadata differ
        assert file.stat().st_blocks * 512 < 1_000_000


def test_the_fillers_of_an_unknown_release_are_both_named(tmp_path: Path) -> None:
    directory = save_published(tmp_path, "GLM-5.3-Flash-DFlash2")
    with pytest.raises(ConfigError) as caught:
        read_drafter_config(directory)
    message = str(caught.value)
    assert "'dflash_config.mask_token_id' is -1" in message
    assert "'rope_theta' is 0" in message
    assert message.count(str(directory / "config.json")) == 1
    # Filled with real values, all the rest of it is right.
    config = published_config("GLM-5.3-Flash-DFlash2")
    config["dflash_config"]["mask_token_id"] = 154820
    config["rope_parameters"]["rope_theta"] = 1e6
    shutil.rmtree(directory)
    check_files(read_drafter_config(save_published(directory, "GLM-5.3-Flash-DFlash2", config)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen3-8B-speculator.dflash", ["speculators container", "count from 1", "- 1"]),
        ("Qwen3.8-27B-MTP-8bit.mlx", ["multi-token-prediction head", "--speculation mtp"]),
    ],
)
def test_other_containers_are_refused_by_name(tmp_path: Path, name: str, words: list[str]) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read_drafter_config(save_published(tmp_path, name))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", TARGETS)
def test_targets_and_the_drafters_that_fit(tmp_path: Path, name: str) -> None:
    model_type, vocab, layers, hidden, eos_ids = TARGETS[name]
    (tmp_path / "config.json").write_text(json.dumps(published_config(f"target.{name}")))
    target = read_target_config(tmp_path)
    assert (target.model_type, target.vocab_size) == (model_type, vocab)
    assert (target.num_hidden_layers, target.hidden_size) == (layers, hidden)
    assert target.eos_ids == eos_ids
    assert not target.repairs.overrides and not target.repairs.notes
    fitting = []
    for drafter in EXPECTED:
        config = read_drafter_config(save_config(tmp_path / drafter, drafter))
        try:
            check_pair(target, config)
        except DrafterMismatch:
            continue
        fitting.append(drafter)
    expected = FITS.get(name, FITS["Qwen3.5-27B"] if layers == 64 else [])
    assert sorted(fitting) == sorted(expected)


def save_config(directory: Path, name: str) -> Path:
    directory.mkdir()
    shutil.copy(DATA / f"{name}.json", directory / "config.json")
    return directory


@pytest.mark.parametrize("name", ["Qwen3-4B-DFlash-b16", "Qwen3.8-27B-DFlash2"])
@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"model.{name}",
        lambda name: f"{name}.weight" if name.endswith("codebook") else name,
    ],
    ids=["model. prefix", "codebooks with .weight"],
)
def test_other_names_of_the_same_tensors(
    tmp_path: Path, name: str, rename: Callable[[str], str]
) -> None:
    tensors = {rename(key): value for key, value in published_tensors(name).items()}
    directory = save_published(
        tmp_path, name, tensors=tensors, file="dflash_draft_model-00001.safetensors"
    )
    check_files(read_drafter_config(directory))
