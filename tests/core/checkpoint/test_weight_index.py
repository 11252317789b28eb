"""An index whose files are not all there: the headers decide whether anything is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.checkpoint.weight_index import index_note, weight_files
from dflash_suite.core.errors import TensorError
from dflash_suite.core.loading.load import load_target
from tests.kit.tiny import save_checkpoint

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def names_in(file: Path) -> list[str]:
    loaded = mx.load(str(file))
    assert isinstance(loaded, dict)
    return sorted(loaded)


def write_index(directory: Path, places: dict[str, str]) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")


def test_a_whole_file_beside_an_index_of_shards_that_never_came(tmp_path: Path) -> None:
    """mlx-lm runs it; here the download was called incomplete."""
    save_checkpoint(tmp_path)
    names = names_in(tmp_path / WHOLE)
    write_index(
        tmp_path, {n: f"model-0000{1 + i % 2}-of-2.safetensors" for i, n in enumerate(names)}
    )
    loaded = load_target(read_target_config(tmp_path))
    assert any("did not come with it" in note for note in loaded.notes)
    assert [file.name for file in weight_files(tmp_path)] == [WHOLE]


def test_an_index_with_a_missing_head(tmp_path: Path) -> None:
    """Only `mtp.*` is missing, so plain decoding and other drafters run."""
    save_checkpoint(tmp_path)
    names = names_in(tmp_path / WHOLE)
    write_index(tmp_path, dict.fromkeys(names, WHOLE) | {"mtp.fc.weight": "mtp.safetensors"})
    loaded = load_target(read_target_config(tmp_path))
    assert any("mtp.safetensors" in note for note in loaded.notes)


@pytest.mark.parametrize("pattern", ["*.safetensors", "model*.safetensors"])
def test_a_tensor_that_is_nowhere_is_a_download_that_is_incomplete(
    pattern: str, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path)
    names = names_in(tmp_path / WHOLE)
    write_index(tmp_path, dict.fromkeys([*names, "model.norm.lost"], "model-1-of-1.safetensors"))
    with pytest.raises(TensorError, match="model-1-of-1.safetensors; the download is incomplete"):
        weight_files(tmp_path, pattern)


def test_an_index_alone_names_what_is_missing(tmp_path: Path) -> None:
    write_index(tmp_path, {"mtp.fc.weight": "mtp.safetensors", "a.weight": "model.safetensors"})
    with pytest.raises(TensorError, match="the download is incomplete"):
        weight_files(tmp_path)


def test_a_whole_index_says_nothing(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    write_index(tmp_path, dict.fromkeys(names_in(tmp_path / WHOLE), WHOLE))
    shutil.copy(tmp_path / WHOLE, tmp_path / "other.safetensors")
    assert index_note(tmp_path) is None
    assert [file.name for file in weight_files(tmp_path)] == [WHOLE]
