"""config.json: typed look-ups whose errors name the key, the value and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.checkpoint.target_config import (
    Fields,
    as_id_set,
    read_json,
    read_target_config,
)
from dflash_suite.core.errors import ConfigError, ModelNotFound

pytestmark = pytest.mark.quick

FILE = Path("some") / "config.json"


def fields(inner: dict[str, Any], outer: dict[str, Any] | None = None) -> Fields:
    return Fields(FILE, (("inner.", inner), ("", outer or {})))


def test_the_first_place_that_has_a_key_wins() -> None:
    both = fields({"a": 1}, {"a": 2, "b": 3})
    assert both.integer("a") == 1 and both.integer("b") == 3
    assert both.raw("a") == ("inner.a", 1) and both.raw("b") == ("b", 3)
    assert both.raw("c") is None
    assert fields({"a": None}, {"a": 2}).integer("a") == 2, "null is absent"


def test_a_missing_key_names_every_place() -> None:
    with pytest.raises(ConfigError) as caught:
        fields({}).integer("size")
    assert str(FILE) in str(caught.value)
    assert "'inner.size' or 'size' is missing; it has no safe default" in str(caught.value)


def test_defaults_and_minimum() -> None:
    assert fields({}).integer("size", 7) == 7
    assert fields({"size": 0}).integer("size", minimum=0) == 0
    with pytest.raises(ConfigError, match="'inner.size' is 0, expected at least 1"):
        fields({"size": 0}).integer("size", 7)
    assert fields({}).number("eps", 0.5) == 0.5
    assert fields({"eps": 2}).number("eps") == 2.0
    assert fields({}).boolean("flag") is None
    assert fields({"flag": False}).boolean("flag") is False
    assert fields({"ids": [3, 1]}).integers("ids") == (3, 1), "in the file's order"


WRONG: list[tuple[str, Any, str]] = [
    ("integer", "8", "a whole number"),
    ("integer", 8.0, "a whole number"),
    ("integer", True, "a whole number"),
    ("integer", [8], "a whole number"),
    ("number", "1e-6", "a number"),
    ("number", True, "a number"),
    ("number", float("nan"), "a finite number"),
    ("number", float("inf"), "a finite number"),
    ("number", float("-inf"), "a finite number"),
    ("boolean", 1, "true or false"),
    ("boolean", "true", "true or false"),
    ("integers", 3, "a list of whole numbers"),
    ("integers", [1, 2.0], "a list of whole numbers"),
    ("integers", [1, True], "a list of whole numbers"),
    ("integers", {"a": 1}, "a list of whole numbers"),
]


@pytest.mark.parametrize(("method", "value", "expected"), WRONG)
def test_a_wrong_type_names_key_value_and_expectation(
    method: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(fields({"key": value}), method)("key")
    assert str(caught.value) == f"{FILE}: 'inner.key' is {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (3, {3}), ([3, 4], {3, 4}), ((3,), {3}), ([], set()), (None, set()), ("3", set()),
        (True, set()), ([True, 5], {5}), ([None, "7", 6], {6}), ({"a": 1}, set()), (0, {0}),
    ],
)  # fmt: skip
def test_id_sets(value: Any, ids: set[int]) -> None:
    assert as_id_set(value) == ids


def test_read_json(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with pytest.raises(ModelNotFound, match="does not exist: give the directory"):
        read_json(file)
    file.write_text('{"a": 1}', encoding="utf-8")
    assert read_json(file) == {"a": 1}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path)


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
