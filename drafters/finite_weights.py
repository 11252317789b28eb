"""NaN and infinity in a drafter's weights: it would load, and none of its drafts be kept."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..core.errors import TensorError


def require_finite_weights(model: nn.Module, where: object) -> None:
    """TensorError that names the first parameter with a value that is no number.

    where: the file or directory. Every floating parameter is read once, as loading reads it anyway.
    """
    flat: Any = tree_flatten(model.parameters())
    floats = [(name, array) for name, array in flat if mx.issubdtype(array.dtype, mx.floating)]
    flags = [mx.isfinite(array).all() for _, array in floats]
    mx.eval(flags)
    for (name, _), flag in zip(floats, flags, strict=True):
        if not flag.item():
            raise TensorError(
                f"{where}: tensor {name} of the drafter holds NaN or infinity; fetch it again"
            )
