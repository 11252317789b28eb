"""A drafter's weights: headers checked first, then every tensor accounted for.

Nothing is loaded by halves: a missing, left-over or misshapen tensor is an error that lists names
and shapes, and all arrays are evaluated before the drafter is used (R21, R23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..core.errors import TensorError
from ..core.safetensors import TensorInfo, listing, read_headers, weight_files
from .config import DrafterConfig
from .dflash import DFlashDrafter, DFlashModel, TargetEnds
from .layers import make_rope

PREFIX = "model."


def load_drafter(
    config: DrafterConfig, ends: TargetEnds, dtype: mx.Dtype = mx.bfloat16
) -> DFlashDrafter:
    """Load a drafter and bind it to a target's embedding and head.

    dtype: compute dtype of its branches. Raises ConfigError (a rope that cannot be built),
    ModelNotFound or TensorError.
    """
    rope = make_rope(config)
    headers = read_headers(weight_files(config.path))
    model = DFlashModel(config)
    check_tensors(config, headers, expected_shapes(model))
    model.load_weights(list(_read_arrays(headers, dtype).items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return DFlashDrafter(model, config, ends, rope)


def expected_shapes(model: DFlashModel) -> dict[str, tuple[int, ...]]:
    """Parameter names and shapes, from the modules themselves."""
    parameters: Any = tree_flatten(model.parameters())
    return {name: tuple(array.shape) for name, array in parameters}


def check_tensors(
    config: DrafterConfig,
    headers: Mapping[str, TensorInfo],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    """Compare names, shapes and dtypes of the files with what the config asks for."""
    found = {module_name(name): info for name, info in headers.items()}
    problems = []
    if twice := sorted(name for name in found if {name, PREFIX + name} <= set(headers)):
        lines = [f"{name} and {PREFIX}{name}" for name in twice]
        problems.append(f"{len(twice)} there twice: {listing(lines)}")
    if missing := sorted(set(expected) - set(found)):
        lines = [f"{name} {list(expected[name])}" for name in missing]
        problems.append(f"{len(missing)} missing: {listing(lines)}")
    if extra := sorted(set(found) - set(expected)):
        lines = [f"{name} {list(found[name].shape)}" for name in extra]
        problems.append(f"{len(extra)} that nothing uses: {listing(lines)}")
    both = sorted(set(found) & set(expected))
    if lines := [
        f"{name}: expected {list(expected[name])}, found {list(found[name].shape)}"
        for name in both
        if found[name].shape != expected[name]
    ]:
        problems.append(f"{len(lines)} misshapen: {listing(lines)}")
    if lines := [
        f"{name} has dtype {found[name].dtype}" for name in both if found[name].dtype not in FLOATS
    ]:
        problems.append(f"{len(lines)} with another dtype than BF16, F16 or F32: {listing(lines)}")
    if problems:
        raise TensorError(
            f"{config.path}: the tensors are not those of this {config.kind} config.json: "
            + "; ".join(problems)
            + ". Fetch config.json and weights of one and the same release"
        )


FLOATS = ("BF16", "F16", "F32")


def module_name(tensor: str) -> str:
    """A tensor's name in the modules: some trainers prefix `model.`."""
    return tensor.removeprefix(PREFIX)


def _read_arrays(headers: Mapping[str, TensorInfo], dtype: mx.Dtype) -> dict[str, mx.array]:
    arrays: dict[str, mx.array] = {}
    for file in sorted({info.file for info in headers.values()}):
        try:
            loaded = mx.load(str(file))
        except RuntimeError as exc:  # its JSON reader is stricter than Python's
            raise TensorError(f"{file} could not be read: {exc}; fetch it again") from exc
        assert isinstance(loaded, dict)
        arrays.update({module_name(name): array.astype(dtype) for name, array in loaded.items()})
    return arrays
