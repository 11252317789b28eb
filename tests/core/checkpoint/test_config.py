"""A target's config.json: where its fields may stand, and which must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.checkpoint.target_config import as_id_set, read_target_config
from dflash_suite.core.errors import ConfigError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (3, {3}), ([3, 4], {3, 4}), ((3,), {3}), ([], set()), (None, set()), ("3", set()),
        (True, set()), ([True, 5], {5}), ([None, "7", 6], {6}), ({"a": 1}, set()), (0, {0}),
    ],
)  # fmt: skip
def test_id_sets(value: Any, ids: set[int]) -> None:
    assert as_id_set(value) == ids


TOP = {"model_type": "qwen3", "vocab_size": 9, "num_hidden_layers": 2, "hidden_size": 4}


def test_fields_at_the_top_or_in_text_config(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    whole = {**TOP, "rope_theta": 1e6}
    file.write_text(json.dumps(whole), encoding="utf-8")
    flat = read_target_config(tmp_path)
    nested = {"model_type": "qwen3_5", "text_config": {**whole, "vocab_size": 11}, "vocab_size": 3}
    file.write_text(json.dumps(nested), encoding="utf-8")
    deep = read_target_config(tmp_path)
    assert (flat.model_type, flat.vocab_size) == ("qwen3", 9)
    assert (deep.model_type, deep.vocab_size) == ("qwen3_5", 11)
    assert flat.eos_ids == frozenset() and deep.raw["vocab_size"] == 3


@pytest.mark.parametrize("key", TOP)
def test_each_missing_key_of_a_target(tmp_path: Path, key: str) -> None:
    raw = {name: value for name, value in TOP.items() if name != key}
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"config.json: '{key}' is missing"):
        read_target_config(tmp_path)
