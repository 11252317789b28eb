"""Targets whose rows are planted to depend on what they should not, as other devices' kernels do.

Each wraps modules of one tiny model's layers; mlx-lm itself is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

from dflash_suite.core.target.families import backbone_class
from dflash_suite.core.target.target import Target
from tests.kit.tiny import Kind, Precision, make_target

Fault = Literal["width", "neighbour", "place", "keys", "width and keys"]


class Rescaled(nn.Module):
    """A module whose output (1, T, n) is multiplied by what `factor` says of it."""

    def __init__(self, inner: Any, factor: Callable[[mx.array], Any]) -> None:
        super().__init__()
        self.inner = inner
        self._factor = factor

    def __call__(self, x: mx.array) -> mx.array:
        out = self.inner(x)
        scaled: mx.array = (out * self._factor(out)).astype(out.dtype)
        return scaled


class CountsKeys(nn.Module):
    """Attention whose result depends on how many keys it is handed, masked ones included: what a
    kernel does whose split of the keys follows their number."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        watched = WatchedCache(cache)
        out: mx.array = self.inner(x, mask, watched)
        return (out * (1 + watched.keys_handed / 1000)).astype(out.dtype)


class WatchedCache:
    """A cache that remembers the number of keys that it handed out last."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.keys_handed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        held: tuple[mx.array, mx.array] = self._cache.update_and_fetch(keys, values)
        self.keys_handed = held[0].shape[2]
        return held


def by_width(x: mx.array) -> mx.array:
    """The same for each row of a pass, other in a pass of more rows."""
    return 1 + x.shape[1] / 50 * (mx.arange(x.shape[-1]) % 2)


def by_neighbour(x: mx.array) -> mx.array:
    """(1, T, 1): a row sees the last row of its pass."""
    return 1 + mx.tanh(x[:, -1:, :1]) / 100


def by_place(x: mx.array) -> mx.array:
    """(1, T, 1): a row sees its place in the pass."""
    return 1 + mx.arange(x.shape[1])[None, :, None] / 100


def plant(target: Target, fault: Fault) -> Target:
    """The same target, its modules wrapped in place."""
    factors: dict[str, Any] = {"width": by_width, "neighbour": by_neighbour, "place": by_place}
    factor = factors.get("width" if fault == "width and keys" else fault)
    for layer in target.backbone.layers:
        if factor is not None:
            layer.mlp = Rescaled(layer.mlp, factor)
        if "keys" in fault and hasattr(layer, "self_attn"):
            layer.self_attn = CountsKeys(layer.self_attn)
    if factor is not None and not target.backbone.is_tied:
        target.backbone.text.lm_head = Rescaled(target.backbone.text.lm_head, factor)
    return target


def planted_target(
    fault: Fault, kind: Kind = "hybrid", precision: Precision = "float32", **changes: Any
) -> Target:
    """A tiny target with one fault."""
    return plant(make_target(kind, precision, **changes), fault)


def unplanted_copy(target: Target) -> Target:
    """The same weights and modules under a new Target."""
    backbone = backbone_class(target.config.model_type)(target.backbone.model)
    return Target(backbone, replace(target.config))
