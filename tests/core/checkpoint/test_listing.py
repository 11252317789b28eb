"""Files of a directory, whatever its own name holds; and hidden files are no data."""

from __future__ import annotations

import ast
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.listing import list_files, list_tree
from dflash_suite.core.checkpoint.weight_index import weight_files
from tests.kit.families import load_family, save_family
from tests.kit.places import ROOT
from tests.kit.tiny import prompt

NAMES = ("m[1]", "m*", "m?", "[!a]", "[")


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_with_a_pattern_for_a_name(tmp_path: Path, name: str) -> None:
    """Its own weights are read, and never those of the sibling that the pattern fits."""
    for directory in (tmp_path / "m1", tmp_path / name):
        directory.mkdir()
        (directory / "model.safetensors").touch()
    own = [tmp_path / name / "model.safetensors"]
    assert list_files(tmp_path / name, "model*.safetensors") == own
    assert weight_files(tmp_path / name) == own


def test_the_model_in_such_a_directory_is_its_own(tmp_path: Path) -> None:
    ids = mx.array([prompt(12)])
    logits = []
    for name, seed in (("plain", 1), ("m1", 2), ("m[1]", 1)):
        save_family(tmp_path / name, "qwen3", seed=seed)
        target = load_family(tmp_path / name).target
        hidden = target.forward_with_taps(ids, target.make_cache()).hidden
        logits.append(target.logits_from_hidden(hidden))
    assert mx.array_equal(logits[0], logits[2])
    assert not mx.array_equal(logits[1], logits[2])


def test_hidden_files_and_folders_are_skipped(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "below").mkdir()
    for name in ("._a.json", "b.json", ".hidden/c.json", "below/d.json", "below/._e.json"):
        (tmp_path / name).touch()
    assert [path.name for path in list_files(tmp_path, "*.json")] == ["b.json"]
    assert [path.name for path in list_tree(tmp_path, "*.json")] == ["b.json", "d.json"]
    assert list_files(tmp_path / "nowhere", "*") == []


def test_a_sidecar_index_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "._model.safetensors").touch()
    (tmp_path / "._model.safetensors.index.json").write_bytes(bytes([0, 5, 22, 7]))
    assert [path.name for path in weight_files(tmp_path)] == ["model.safetensors"]


def test_nothing_else_lists_by_a_pattern() -> None:
    for folder in ("cli", "core", "doctor", "drafters"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute):
                    assert node.attr not in ("glob", "rglob", "iglob"), file
