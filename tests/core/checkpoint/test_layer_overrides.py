"""Configs as transformers writes them from 5.15 on, which mlx-lm cannot read as they stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import ConfigError
from dflash_suite.core.target.target import Target
from tests.kit.families import load_family, save_family
from tests.kit.tiny import prompt


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = directory / "config.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    change(raw)
    file.write_text(json.dumps(raw), encoding="utf-8")


def by_layer(raw: dict[str, Any]) -> None:
    """The sizes of full-attention layers, moved to where newer files have them."""
    text = raw.get("text_config", raw)
    sizes = {"head_dim": text.pop("global_head_dim")}
    if "num_global_key_value_heads" in text:
        sizes["num_key_value_heads"] = text.pop("num_global_key_value_heads")
    types = enumerate(text["layer_types"])
    text["per_layer_config"] = {str(i): dict(sizes) for i, one in types if one == "full_attention"}


def logits(target: Target) -> mx.array:
    result = target.forward_with_taps(mx.array(prompt(9))[None], target.make_cache())
    return target.logits_from_hidden(result.hidden)


@pytest.mark.parametrize("name", ["gemma4", "gemma4_text", "gemma4-moe"])
def test_sizes_by_layer_are_those_of_the_older_keys(name: str, tmp_path: Path) -> None:
    directory = save_family(tmp_path, name)
    expected = logits(load_family(directory).target)
    edit(directory, by_layer)
    assert mx.array_equal(logits(load_family(directory).target), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text["per_layer_config"].update({"0": {"head_dim": 8}}), "other layers"),
        (lambda text: text["per_layer_config"].popitem(), "other layers"),
        (lambda text: text["per_layer_config"]["1"].update(head_dim=8), "not the same"),
        (lambda text: text["per_layer_config"]["1"].update(rope=8), "not the same"),
        (lambda text: text.update(per_layer_config=[1]), "expected an object by layer"),
        (lambda text: text.update(global_head_dim=8), "disagree"),
        (
            lambda text: [one.update(window=8) for one in text["per_layer_config"].values()],
            "can build head_dim and num_key_value_heads",
        ),
    ],
)
def test_what_mlx_lm_cannot_build_is_refused(
    change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path
) -> None:
    directory = save_family(tmp_path, "gemma4")
    edit(directory, by_layer)
    edit(directory, lambda raw: change(raw["text_config"]))
    with pytest.raises(ConfigError, match=words):
        read_target_config(directory)


@pytest.mark.parametrize("name", ["qwen3_5", "gemma4"])
def test_an_embedding_that_is_tied_at_the_top_alone(name: str, tmp_path: Path) -> None:
    """It failed with a missing lm_head."""
    directory = save_family(tmp_path, name, tie_word_embeddings=True)
    expected = logits(load_family(directory).target)

    def move(raw: dict[str, Any]) -> None:
        raw["tie_word_embeddings"] = raw["text_config"].pop("tie_word_embeddings")

    edit(directory, move)
    assert mx.array_equal(logits(load_family(directory).target), expected)
