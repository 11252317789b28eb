"""Whole numbers where a model multiplies are refused, by the loader and by doctor alike."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.dry_load import build_model, fill, quantize, sanitize
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import TensorError
from dflash_suite.core.loading.load import load_target
from tests.kit.tiny import Precision, save_checkpoint

FILE = "model.safetensors"


def retype(file: Path, part: str, dtype: mx.Dtype) -> str:
    """The first tensor whose name has `part` in it, in another type; its name."""
    loaded = mx.load(str(file))
    assert isinstance(loaded, dict)
    arrays: dict[str, mx.array] = {name: mx.array(array) for name, array in loaded.items()}
    name = next(one for one in sorted(arrays) if part in one)
    arrays[name] = arrays[name].astype(dtype)
    mx.eval(arrays)
    mx.save_safetensors(str(file), arrays, metadata={"format": "mlx"})
    return name


@pytest.mark.parametrize(
    ("precision", "part", "dtype"),
    [
        ("float32", "norm.weight", mx.int32),
        ("float32", "mlp.up_proj.weight", mx.uint32),
        ("float32", "A_log", mx.int64),
        ("4bit", "mlp.up_proj.weight", mx.int32),
        ("4bit", "mlp.up_proj.scales", mx.int32),
        ("4bit", "mlp.up_proj.biases", mx.uint32),
    ],
)
def test_a_target_is_refused(
    precision: Precision, part: str, dtype: mx.Dtype, tmp_path: Path
) -> None:
    """It was loaded, and decoded garbage."""
    save_checkpoint(tmp_path, precision=precision)
    name = retype(tmp_path / FILE, part, dtype)
    config = read_target_config(tmp_path)
    said = f"{name.split('.', 1)[1]} is .*int.*, expected"
    with pytest.raises(TensorError, match=said):
        load_target(config)
    skeleton = sanitize(config, build_model(config), [tmp_path / FILE])
    quantize(skeleton)
    with pytest.raises(TensorError, match=said):
        fill(skeleton)
