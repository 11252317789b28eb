"""Published checkpoints as facts: their config.json, and files with true headers and no data.

`data/configs/NAME.json` is a config.json; `NAME.tensors.json` lists dtype and shape of each tensor.
A weights file made of them is sparse: as long as the real one, and next to nothing on the disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_suite.core.checkpoint.safetensors_headers import ITEM_BYTES
from tests.kit.places import CONFIGS

DATA = CONFIGS
Tensors = dict[str, tuple[str, list[int]]]
"""Name -> (dtype, shape)."""
DRAFTERS = sorted(
    file.name.removesuffix(".json")
    for file in DATA.glob("*.json")
    if not file.name.startswith("target.") and not file.name.endswith(".tensors.json")
)


def published_config(name: str) -> dict[str, Any]:
    """A fresh copy of one config.json."""
    config: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return config


def published_tensors(name: str) -> Tensors:
    """Every tensor of the checkpoint."""
    listed = json.loads((DATA / f"{name}.tensors.json").read_text())
    return {key: (dtype, shape) for key, (dtype, shape) in listed.items()}


def save_sparse(file: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> Path:
    """A safetensors file of the right size whose data was never written."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + ITEM_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return file


def save_published(
    directory: Path,
    name: str,
    config: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
    file: str = "model.safetensors",
) -> Path:
    """A directory with the published config.json and sparse weights, or changed copies of them."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(published_config(name) if config is None else config)
    (directory / "config.json").write_text(text, encoding="utf-8")
    save_sparse(directory / file, published_tensors(name) if tensors is None else tensors)
    return directory
