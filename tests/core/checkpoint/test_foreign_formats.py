"""Weights packed elsewhere are called by their name, of targets and drafters alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.core.checkpoint.foreign_formats import FORMATS, stated_block
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import UnsupportedModel
from dflash_suite.drafters.dflash.container import classify
from tests.kit.published import published_config
from tests.kit.tiny import save_checkpoint

METHODS = [method for one in FORMATS for method in one.methods]
FILE = Path("drafter/config.json")
BLOCK = {"bits": 4, "group_size": 64}
READ: list[dict[str, Any]] = [
    {"quant_method": "awq", "bits": 4},
    {"quant_method": "gptq"},
    {"quant_method": "mxfp4"},
    {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}},
    {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32]},
]
"""Blocks that mlx-lm's loader takes of a target."""


@pytest.mark.parametrize("method", [*METHODS, "tomorrow's", None])
def test_a_drafter_is_refused_by_name(method: str | None) -> None:
    raw = published_config("Qwen3-4B-DFlash-b16")
    raw["quantization_config"] = {"quant_method": method} if method else {"format": "x"}
    with pytest.raises(UnsupportedModel, match="packed.*take the bfloat16 checkpoint") as found:
        classify(raw, FILE)
    assert (method or "no quant_method") in str(found.value)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("block", [{"quant_method": "hqq"}, {"quant_method": "new"}, {"a": 1}])
def test_a_target_is_refused_by_name(block: dict[str, Any], nested: bool, tmp_path: Path) -> None:
    """It ended in a list of tensor names, or in KeyError: 'quant_method'."""
    directory = save_checkpoint(tmp_path)
    file = directory / "config.json"
    raw = json.loads(file.read_text())
    (raw["text_config"] if nested else raw)["quantization_config"] = block
    file.write_text(json.dumps(raw))
    for command in (["generate", "--raw", "x", "-m", str(directory)], ["doctor", str(directory)]):
        done = CliRunner().invoke(app, command)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.exit_code == 1 and "the target's weights are packed" in said


@pytest.mark.parametrize("block", READ)
def test_what_mlx_lm_reads_is_left_to_it(block: dict[str, Any], tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": block}))
    assert read_target_config(directory).raw["quantization_config"] == block


def test_the_block_of_mlxs_own_converters_is_none_of_these() -> None:
    assert stated_block({"quantization": BLOCK, "quantization_config": BLOCK}) is None
    assert stated_block({"quantization_config": BLOCK}) is None
    assert stated_block({"text_config": {"quantization_config": {"quant_method": "awq"}}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["DSparkDraftModel"]}, "DSpark"),
        ({"architectures": None}, "dflash drafter"),
        ({"speculators_config": {"a": 1}}, "speculators container"),
        ({"selector_vocab_size": 5}, "selector_vocab_size"),
        ({"draft_vocab_size": 5}, "draft_vocab_size"),
        ({"quantization_config": {"quant_method": "hqq"}}, "HQQ"),
        ({"eagle_aux_hidden_state_layer_ids": [1]}, "EAGLE"),
        ({}, "give its directory to --drafter"),
    ],
)
def test_a_drafter_given_as_the_model_is_one(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Doctor passed it as a target; generate ended in a TypeError's text."""
    raw = {**published_config("Qwen3-4B-DFlash-b16"), **changes}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for command in (["generate", "--raw", "x"], ["bench", "--ab", "mtp"]):
        done = CliRunner().invoke(app, [*command, "-m", str(tmp_path)])
        said = " ".join((done.stdout + done.stderr).split())
        assert done.exit_code == 1 and "drafter and not" in said, said
        assert words in said
    found = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert found.exit_code == 1 and "PASS kind qwen3" not in " ".join(found.stdout.split())


def test_a_target_given_to_quantize_is_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "dense")
    done = CliRunner().invoke(app, ["quantize", str(tmp_path)])
    assert done.exit_code == 1 and "is a target (qwen3) and not a drafter" in done.stderr
