"""Rotary embeddings of MLX for what a config.json asks, and the model's own held against them.

mlx-lm's modules differ from transformers where a setting is missing, and some never read a scaling
at all. The rope is therefore built here from what was read, compared with what the model has, and
put in its place where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import ConfigError
from .mlx_models import model_module
from .rope import BETAS, Rope


class ScaledRope(nn.Module):
    """A rope of given wavelengths (radians per turn of a pair, base ** (2 i / dims) unscaled).

    scale: what queries and keys are multiplied by, yarn's attention factor.
    """

    def __init__(self, wavelengths: list[float], scale: float, traditional: bool) -> None:
        super().__init__()
        self.dims = 2 * len(wavelengths)
        self.traditional = traditional
        self.scale = scale
        self._freqs = mx.array(wavelengths, dtype=mx.float32)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x of shape (..., rows, head_dim), its rows at positions offset and on."""
        if self.scale != 1.0:
            x = x.at[..., : self.dims].multiply(self.scale)
        return mx.fast.rope(
            x, self.dims, traditional=self.traditional, base=None, scale=1.0, offset=offset,
            freqs=self._freqs,
        )  # fmt: skip


def build_rope(
    rope: Rope, head_dim: int, positions: int | None, traditional: bool = False
) -> nn.Module:
    """The module that turns heads of `head_dim` as transformers does; positions: the model's."""
    dims = rope.dims(head_dim)
    if rope.kind == "yarn":
        return ScaledRope(*_yarn(rope, dims), traditional)
    scaling = {"rope_type": rope.kind, **rope.settings}
    if rope.kind == "proportional":
        scaling["partial_rotary_factor"] = rope.partial
    module: nn.Module = model_module("rope_utils").initialize_rope(
        dims, rope.theta, traditional, scaling, positions
    )
    return module


def fit_ropes(model: Any, ropes: Mapping[str, Rope], positions: int | None) -> tuple[str, ...]:
    """Put the wanted rope where a layer's own turns otherwise; returns what was put in.

    ropes: by layer type, or under "" for all layers; none leaves the model as it is.
    """
    if not ropes:
        return ()
    changed: dict[str, None] = {}
    for _, module in model.named_modules():
        own = getattr(module, "rope", None)
        if not isinstance(own, nn.Module):
            continue
        head_dim = getattr(module, "head_dim", None)
        head_dim = head_dim or module.k_proj.weight.shape[0] // module.n_kv_heads
        rope = ropes.get(getattr(module, "layer_type", ""), ropes.get(""))
        if rope is None:
            raise ConfigError(f"no rope is stated for layers of type '{module.layer_type}'")
        wanted = build_rope(rope, head_dim, positions, getattr(own, "traditional", False))
        if not turn_alike(own, wanted):
            module.rope = wanted
            changed[str(rope)] = None
    return tuple(changed)


def turn_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two ropes turn every pair by the same angle, up to float32 rounding."""
    first, second = _described(one), _described(other)
    return len(first) == len(second) and all(
        a == b or math.isclose(a, b, rel_tol=1e-5) for a, b in zip(first, second, strict=True)
    )


def _described(rope: Any) -> list[float]:
    """Numbers that say all of a rope: scale, further settings, then the wavelengths."""
    dims: int = rope.dims if hasattr(rope, "dims") else rope.dim
    freqs = getattr(rope, "_freqs", None)
    if freqs is not None:
        listed: Any = freqs.tolist()
        scale = getattr(rope, "scale", None) or getattr(rope, "mscale", None)
        return [dims, scale or getattr(rope, "_scale", 1.0), *listed]
    if hasattr(rope, "factor"):  # recomputed at every length
        return [dims, rope.base, rope.factor, rope.max_position_embeddings or 0]
    return [dims, 1.0, *(w / rope.scale for w in _wavelengths(rope.base, dims))]


def _wavelengths(base: float, dims: int) -> list[float]:
    return [base ** (2 * index / dims) for index in range(dims // 2)]


def _yarn(rope: Rope, dims: int) -> tuple[list[float], float]:
    """(wavelengths, attention factor) of YaRN (arXiv 2309.00071), as transformers computes them.

    mlx-lm's own always rounds the corrected range, and reads neither `truncate` nor
    `attention_factor`.
    """
    given = {**BETAS, **rope.settings}
    factor, original = given["factor"], given["original_max_position_embeddings"]
    low, high = (
        dims * math.log(original / (given[name] * 2 * math.pi)) / (2 * math.log(rope.theta))
        for name in BETAS
    )
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = high - low or 0.001
    scaled = []
    for index, plain in enumerate(_wavelengths(rope.theta, dims)):
        share = min(max((index - low) / width, 0.0), 1.0)
        scaled.append(1 / (share / (factor * plain) + (1 - share) / plain))
    return scaled, _attention_factor(given)


def _attention_factor(given: dict[str, Any]) -> float:
    def of(mscale: float) -> float:
        return 1.0 if given["factor"] <= 1 else 0.1 * mscale * math.log(given["factor"]) + 1.0

    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    if given.get("mscale") and given.get("mscale_all_dim"):
        return of(given["mscale"]) / of(given["mscale_all_dim"])
    return of(1.0)
