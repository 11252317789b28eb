"""Parameters of the wrong type: whole numbers where a module multiplies, or floats in packs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..device import dtype_text
from ..errors import TensorError


def require_types(
    model: nn.Module, where: Path, arrays: Mapping[str, mx.array] | None = None
) -> None:
    """TensorError for the first parameter whose type its module cannot compute with.

    where: the file or directory that it came from; arrays: what is about to be loaded, by name.
    """
    arrays = arrays or {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.Module):
            continue
        is_packed = "scales" in module
        for name, array in module.items():
            if not isinstance(array, mx.array):
                continue
            dtype = arrays.get(f"{path}.{name}", array).dtype
            if not _fits(name, dtype, is_packed):
                expected = "uint32, as packed weights are" if is_packed else "a floating type"
                raise TensorError(
                    f"{where}: tensor {path}.{name} is {dtype_text(dtype)}, "
                    f"expected {expected}; fetch the weights again"
                )


def _fits(name: str, dtype: Any, is_packed: bool) -> bool:
    if is_packed and name == "weight":
        return bool(dtype == mx.uint32)
    if is_packed and name == "scales":
        return bool(dtype == mx.uint8 or mx.issubdtype(dtype, mx.floating))
    return bool(mx.issubdtype(dtype, mx.floating))
