"""A target's modules over its files' headers: would mlx-lm's strict load accept these weights?

The steps of mlx-lm's load_model, in its order, on arrays that are never evaluated: mx.load reads
headers only, so a checkpoint of any size costs neither memory nor time. mlx-lm's own model class
says which parameters there are, renames and stacks what the files hold, and takes the result;
nothing about a family is written down here a second time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError, ConfigError, TensorError, described
from .mlx_models import model_module
from .packings import FLOAT_MODES
from .param_types import require_types
from .rope_modules import fit_ropes
from .target_config import TargetConfig


@dataclass(frozen=True)
class Skeleton:
    """A model whose parameters are placeholders, and what the files hold under its names.

    is_filled: the tensors are in it already.
    """

    config: TargetConfig
    model: Any
    weights: Mapping[str, mx.array]
    is_filled: bool = False


def states_other_packing(config: TargetConfig) -> bool:
    """Whether the weights are packed as another library states it, which mlx-lm's own loader
    rewrites in ways that are not repeated here."""
    raw = _effective(config)
    text = raw.get("text_config") or {}
    stated = raw.get("quantization_config") or text.get("quantization_config")
    beside = (config.path / "hf_quant_config.json").is_file()
    return raw.get("quantization") is None and bool(stated or beside)


def build_model(config: TargetConfig) -> Any:
    """mlx-lm's model of this config.json, with placeholder parameters.

    Raises ConfigError where mlx-lm's classes cannot be built of it.
    """
    raw = _effective(config)
    if raw.get("model_file") is not None:
        raise ConfigError(
            f"{config.file}: 'model_file' names code of the checkpoint's own, which mlx-lm does "
            "not run; take a checkpoint of a model that mlx-lm knows"
        )
    try:
        module: Any = model_module(config.model_type)
        model = module.Model(module.ModelArgs.from_dict(raw))
        fit_ropes(model, config.repairs.ropes, config.max_positions)
        return model
    except Exception as exc:  # mlx-lm's code raises of every kind for a bad config or file
        raise ConfigError(
            f"{config.file}: mlx-lm cannot build a {config.model_type} of it "
            f"({described(exc)}); fetch the file again, or correct the sizes in it"
        ) from exc


def sanitize(config: TargetConfig, model: Any, files: list[Path]) -> Skeleton:
    """The files' tensors under the model's names. Raises TensorError for what cannot be renamed."""
    weights: dict[str, mx.array] = {}
    try:
        for file in files:
            loaded: Any = mx.load(str(file))
            weights.update(loaded)
        reads = config.family.reads
        weights = {name: array for name, array in weights.items() if reads(name)}
        if hasattr(model, "sanitize"):
            weights = model.sanitize(weights)
    except Exception as exc:  # as above
        raise _unlike(config, exc) from exc
    return Skeleton(config, model, weights)


def quantize(skeleton: Skeleton) -> None:
    """Make the modules quantized that are so in the files, each at its own width.

    Raises CheckpointError for a `quantization` block, or packs, that mlx cannot use.
    """
    block = _effective(skeleton.config).get("quantization")
    if block is None or skeleton.is_filled:
        return
    try:
        nn.quantize(
            skeleton.model,
            group_size=block["group_size"],
            bits=block["bits"],
            mode=block.get("mode", "affine"),
            class_predicate=_predicate(block, skeleton.weights),
        )
    except Exception as exc:  # as above
        raise CheckpointError(
            f"{skeleton.config.file}: 'quantization' cannot be applied to the tensors "
            f"({described(exc)}); take config.json and weights of one conversion"
        ) from exc


def fill(skeleton: Skeleton) -> None:
    """Put the files' tensors in, strictly. Raises TensorError: missing, left over, misshapen."""
    if skeleton.is_filled:
        return
    try:
        skeleton.model.load_weights(list(skeleton.weights.items()), strict=True)
    except Exception as exc:  # as above
        raise _unlike(skeleton.config, exc) from exc
    require_types(skeleton.model, skeleton.config.path)


def _effective(config: TargetConfig) -> dict[str, Any]:
    """config.json with the repairs that the loader passes on (mlx-lm's classes rewrite theirs)."""
    return copy.deepcopy({**config.raw, **config.repairs.overrides})


def _unlike(config: TargetConfig, exc: Exception) -> TensorError:
    return TensorError(
        f"{config.path}: the tensors are not those of this config.json "
        f"({described(exc)}). Fetch config.json and weights of one and "
        "the same release"
    )


def _predicate(
    block: Mapping[str, Any], weights: Mapping[str, mx.array]
) -> Callable[[str, nn.Module], bool | dict[str, Any]]:
    """Which modules are quantized, and how: an override, else what the packs' shapes say."""

    def parameters(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if path in block:
            override: bool | dict[str, Any] = block[path]
            return override
        if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        scales, inputs = weights[f"{path}.scales"], module.weight.shape[-1]
        group_size = inputs // scales.shape[-1]
        bits = weights[f"{path}.weight"].shape[-1] * 32 // inputs
        mode = "affine" if scales.dtype != mx.uint8 else FLOAT_MODES[bits, group_size]
        found: dict[str, Any] = {"group_size": group_size, "bits": bits, "mode": mode}
        if f"{path}.global_scale" in weights:
            found["global_scale"] = True
        return found

    return parameters
