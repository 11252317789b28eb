"""How large a benchmark's weights are, and in what precision: what a speed is owed to."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ...core.device import dtype_text
from ..dflash.packed import most_bits


def weights_of(name: str, module: Any) -> dict[str, Any]:
    """Settings of an arm: bytes of a module's parameters, and the precision of most of them."""
    flat: Any = tree_flatten(module.parameters())
    arrays = [array for _, array in flat]
    bits = most_bits(module)
    floats = [array for array in arrays if mx.issubdtype(array.dtype, mx.floating)]
    largest = max(floats, key=lambda array: int(array.size), default=None)
    precision = f"{bits} bits" if bits < 16 or largest is None else dtype_text(largest.dtype)
    size_bytes = sum(int(array.nbytes) for array in arrays)
    return {f"{name}_weight_bytes": size_bytes, f"{name}_precision": precision}
