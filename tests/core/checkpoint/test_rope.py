"""The rope that config.json asks for is the rope that turns: every family, every place, every kind.

Held against the published formulas in numpy (tests/kit/rope_formula.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash_suite.core.checkpoint.dry_load import build_model
from dflash_suite.core.checkpoint.rope_modules import fit_ropes
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import ConfigError, DflashError, UnsupportedModel
from dflash_suite.core.loading.load import load_target
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.layers import make_rope
from dflash_suite.drafters.mtp.drafter import MtpModel
from tests.kit.families import family_config, save_family
from tests.kit.rope_formula import Floats, frequencies, turned
from tests.kit.tiny_drafter import raw_drafter

FAMILIES = ("llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "gpt_oss")
HALF_TURNED = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
THETA = 5000.0
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {"factor": 4.0}),
    "yarn": ("yarn", YARN),
    "yarn, betas": ("yarn", {**YARN, "beta_fast": 8.0, "beta_slow": 2.0}),
    "yarn, not truncated": ("yarn", {**YARN, "truncate": False}),
    "yarn, attention factor": ("yarn", {**YARN, "attention_factor": 1.5}),
    "yarn, mscale": ("yarn", {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}),
    "yarn, mscale alone": ("yarn", {**YARN, "mscale": 2.0}),
    "llama3": (
        "llama3",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "default": ("default", {}),
}
PLACES = ("flat", "flat, old key", "nested", "base in both", "scaling beside the base")


def stated(place: str, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The keys of config.json."""
    scaling = {"rope_type": kind, **settings}
    if place == "flat":
        return {"rope_theta": THETA, "rope_scaling": scaling}
    if place == "flat, old key":
        return {"rope_theta": THETA, "rope_scaling": {"type": kind, **settings}}
    if place == "nested":
        return {"rope_parameters": {**scaling, "rope_theta": THETA}}
    if place == "base in both":
        return {"rope_theta": THETA, "rope_parameters": {**scaling, "rope_theta": THETA}}
    return {"rope_parameters": {"rope_theta": THETA}, "rope_scaling": scaling}


def write_config(directory: Path, name: str, changes: dict[str, Any]) -> Path:
    raw = family_config(name)
    text = raw.get("text_config", raw)
    for key in ("rope_theta", "rope_scaling", "rope_parameters"):
        text.pop(key, None)
    text.update(changes)
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def ropes_of(model: Any) -> list[Any]:
    found = [module.rope for _, module in model.named_modules() if "rope" in module]
    assert found
    return found


def assert_turns(rope: Any, head_dim: int, expected: tuple[Floats, float]) -> None:
    """A rope's own output, over positions well beyond the original ones."""
    rows = np.random.default_rng(0).standard_normal((200, head_dim))
    own = np.array(rope(mx.array(rows, dtype=mx.float32)[None, None]))[0, 0]
    np.testing.assert_allclose(own, turned(rows, *expected), atol=2e-4)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_turns_as_config_json_asks(
    tmp_path: Path, family: str, kind: str, place: str
) -> None:
    name, settings = KINDS[kind]
    write_config(tmp_path, family, stated(place, name, settings))
    config = read_target_config(tmp_path)
    head_dim = config.text["head_dim"]
    dims = head_dim // 4 if family in HALF_TURNED else head_dim
    for rope in ropes_of(build_model(config)):
        assert_turns(rope, head_dim, frequencies(name, THETA, dims, **settings))
    shown = str(config.repairs.ropes[""])
    assert name in shown and all(f"{key} {value}" in shown for key, value in settings.items())


def test_the_loader_and_the_dry_build_have_the_same_rope(tmp_path: Path) -> None:
    save_family(tmp_path, "qwen3_moe")
    write_config(tmp_path, "qwen3_moe", stated("nested", "yarn", YARN))
    config = read_target_config(tmp_path)
    loaded = load_target(config).target.backbone.model
    assert "never reads" in config.repairs.notes[-1]
    for one in (loaded, build_model(config)):
        assert_turns(ropes_of(one)[0], 16, frequencies("yarn", THETA, 16, **YARN))


def test_settings_that_config_json_leaves_to_the_family(tmp_path: Path) -> None:
    """transformers takes gpt-oss for scaled, a half-stated yarn for one of all positions."""
    write_config(tmp_path, "gpt_oss", {})
    default = {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    model = build_model(read_target_config(tmp_path))
    assert_turns(ropes_of(model)[0], 16, frequencies("yarn", 150000.0, 16, **default))
    scaling = {"type": "yarn", "factor": 4.0}
    changes = {"rope_theta": THETA, "rope_scaling": scaling, "max_position_embeddings": 100}
    model = build_model(read_target_config(write_config(tmp_path, "llama", changes)))
    settings = {"factor": 4.0, "original_max_position_embeddings": 100}
    assert_turns(ropes_of(model)[0], 16, frequencies("yarn", THETA, 16, **settings))


REFUSED: dict[str, tuple[dict[str, Any], type[DflashError], str]] = {
    "default inside, yarn beside": (
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
            "rope_scaling": {"type": "yarn", **YARN},
        },
        ConfigError,
        "contradict",
    ),
    "another factor": (
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": THETA, "factor": 2.0},
            "rope_scaling": {"type": "linear", "factor": 4.0},
        },
        ConfigError,
        "rope_scaling.factor",
    ),
    "longrope": (
        {"rope_theta": THETA, "rope_scaling": {"type": "longrope", "factor": 4.0}},
        UnsupportedModel,
        "longrope",
    ),
    "no factor": (
        {"rope_theta": THETA, "rope_scaling": {"type": "yarn"}}, ConfigError, "'factor'",
    ),
    "a text": ({"rope_theta": "1e4"}, ConfigError, "'rope_theta' is '1e4'"),
    "400 digits": ({"rope_theta": 10**400}, ConfigError, "expected a positive number"),
    "zero": ({"rope_theta": 0}, ConfigError, "positive"),
}  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_by_name(tmp_path: Path, family: str, case: str) -> None:
    changes, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        read_target_config(write_config(tmp_path, family, changes))
    raw = raw_drafter("dflash", rope_parameters=None)
    (tmp_path / "config.json").write_text(json.dumps(raw | changes))
    with pytest.raises(error, match=words):
        read_drafter_config(tmp_path)


def test_a_part_of_each_head_where_the_family_turns_whole_heads(tmp_path: Path) -> None:
    changes = {"rope_theta": THETA, "partial_rotary_factor": 0.5}
    with pytest.raises(UnsupportedModel, match="partial_rotary_factor"):
        read_target_config(write_config(tmp_path, "qwen3", changes))


def test_a_scaling_beside_the_text_config_is_no_scaling(tmp_path: Path) -> None:
    raw = family_config("qwen3_5") | {"rope_scaling": {"type": "yarn", **YARN}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match="beside 'text_config'"):
        read_target_config(tmp_path)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_turns_as_its_config_json_asks(tmp_path: Path, kind: str, place: str) -> None:
    name, settings = KINDS[kind]
    raw = raw_drafter("dflash", rope_parameters=None) | stated(place, name, settings)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = read_drafter_config(tmp_path)
    head_dim = config.head_dim
    assert_turns(make_rope(config), head_dim, frequencies(name, THETA, head_dim, **settings))
    assert str(config.rope).startswith(name)


def test_a_setting_of_a_drafter_that_would_be_ignored(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 4.0, "mscale": 2.0}
    raw = raw_drafter("dflash", rope_theta=THETA, rope_parameters=None, rope_scaling=scaling)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UnsupportedModel, match="'mscale'"):
        read_drafter_config(tmp_path)


def test_an_mtp_head_turns_as_its_target(tmp_path: Path) -> None:
    """Of the target's config.json, or of the head's own folder."""
    write_config(tmp_path, "qwen3_5", stated("flat", "yarn", {**YARN, "truncate": False}))
    config = read_target_config(tmp_path)
    head = MtpModel(build_model(config).language_model.args, moe=False)
    fit_ropes(head, config.repairs.ropes, config.max_positions)
    expected = frequencies("yarn", THETA, config.text["head_dim"] // 4, **YARN, truncate=False)
    assert_turns(ropes_of(head)[0], config.text["head_dim"], expected)
