"""A LoRA adapter over a target, applied as mlx-lm's own loader applies it: beside the weights, and
not fused into them, since they may be packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoint.target_config import ADAPTER_CONFIG, is_peft
from ..errors import CheckpointError, ModelNotFound, UnsupportedModel, described
from ..json_values import read_json
from ..settings import user_path

WEIGHTS = "adapters.safetensors"


def find_adapter(stated: str) -> Path:
    """The adapter's directory.

    Raises ModelNotFound where there is none, UnsupportedModel for one in PEFT's format.
    """
    directory = user_path(stated)
    if not directory.is_dir():
        raise ModelNotFound(
            f"{directory} is no directory; --adapter-path takes an adapter's folder"
        )
    config = read_json(directory / ADAPTER_CONFIG)
    if is_peft(config):
        raise UnsupportedModel(
            f"{directory} is a PEFT adapter, and mlx-lm reads its own format alone: convert it, or "
            "train it with mlx_lm.lora"
        )
    if not (directory / WEIGHTS).is_file():
        raise ModelNotFound(f"{directory} has no {WEIGHTS}; fetch it, or train the adapter first")
    return directory


def apply_adapter(model: Any, directory: Path) -> None:
    """Wrap the layers that the adapter names, and load its weights into the wrappers.

    Raises CheckpointError for an adapter of another model.
    """
    from mlx_lm.tuner.utils import load_adapters

    try:
        load: Any = load_adapters
        load(model, str(directory))
    except Exception as exc:  # mlx-lm raises of every kind for a bad file
        raise CheckpointError(
            f"{directory} cannot be applied to this target ({described(exc)}); give the adapter "
            "that was trained for it"
        ) from exc
    model.eval()
