"""A drafter's weights: headers checked first, then every tensor accounted for.

Nothing is loaded by halves: a missing, left-over or misshapen tensor is an error that lists names
and shapes, and all arrays are evaluated before the drafter is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ...core.checkpoint.safetensors_headers import TensorInfo
from ...core.checkpoint.weight_source import Source, load_arrays, read_source
from ..finite_weights import require_finite_weights
from .config import DrafterConfig
from .drafter import DFlashDrafter, DFlashModel, TargetEnds
from .layers import make_rope
from .packed import pack_modules
from .tensors import check_tensors, module_name, packings_of


def load_drafter(
    config: DrafterConfig, ends: TargetEnds, dtype: mx.Dtype = mx.bfloat16
) -> DFlashDrafter:
    """Load a drafter and bind it to a target's embedding and head.

    dtype: compute dtype of its branches. Raises ConfigError (a rope that cannot be built),
    ModelNotFound, UnsupportedModel or TensorError.
    """
    config, headers = check_files(config)
    return bind_drafter(config, ends, make_rope(config), _read_arrays(headers, dtype))


def check_files(config: DrafterConfig) -> tuple[DrafterConfig, dict[str, TensorInfo]]:
    """All that can be known before data is read: the rope, the headers, every name and shape.

    Returns the config, with the biases that the file has, and the headers. Raises as load_drafter.
    """
    config, source = check_source(config)
    return config, source.tensors


def check_source(config: DrafterConfig) -> tuple[DrafterConfig, Source]:
    """As check_files, with what a slab is known by: the headers are read once for both."""
    make_rope(config)
    source = read_source(config.path)
    config = with_biases(config, source.tensors)
    check_tensors(config, source.tensors, expected_shapes(DFlashModel(config)))
    return config, source


def with_biases(config: DrafterConfig, headers: Mapping[str, TensorInfo]) -> DrafterConfig:
    """A config that leaves attention_bias open has biases iff the file has some."""
    if config.states_attention_bias:
        return config
    found = any(name.endswith("self_attn.q_proj.bias") for name in headers)
    return replace(config, attention_bias=found)


def bind_drafter(
    config: DrafterConfig, ends: TargetEnds, rope: nn.Module, arrays: Mapping[str, mx.array]
) -> DFlashDrafter:
    """A drafter from arrays under their names in the file, checked before; some may be packed."""
    named = {module_name(name): array for name, array in arrays.items()}
    model = DFlashModel(config)
    shapes = {name: tuple(array.shape) for name, array in named.items()}
    in_bytes = {name for name, array in named.items() if array.dtype == mx.uint8}
    pack_modules(model, named, packings_of(expected_shapes(model), shapes, in_bytes))
    model.load_weights(list(named.items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    require_finite_weights(model, config.path)
    return DFlashDrafter(model, config, ends, rope)


def expected_shapes(model: DFlashModel) -> dict[str, tuple[int, ...]]:
    """Parameter names and shapes, from the modules themselves."""
    parameters: Any = tree_flatten(model.parameters())
    return {name: tuple(array.shape) for name, array in parameters}


def _read_arrays(headers: Mapping[str, TensorInfo], dtype: mx.Dtype) -> dict[str, mx.array]:
    """Arrays by their names in the file; floating ones in `dtype`, packed ones as they are."""
    arrays: dict[str, mx.array] = {}
    for file in sorted({info.file for info in headers.values()}):
        for name, array in load_arrays(file).items():
            floating = mx.issubdtype(array.dtype, mx.floating)
            arrays[name] = array.astype(dtype) if floating else array
    return arrays
