"""The published formulas of rotary embeddings, in numpy and apart from the suite: what the rows of
a head are turned to. Written after transformers 5.24's modeling_rope_utils.py."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


def frequencies(kind: str, theta: float, dims: int, **given: Any) -> tuple[Floats, float]:
    """(inverse frequencies, attention factor)."""
    plain = theta ** -(np.arange(0, dims, 2, dtype=np.float64) / dims)
    if kind == "default":
        return plain, 1.0
    factor = given["factor"]
    if kind == "linear":
        return plain / factor, 1.0
    original = given["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        turns = original * plain / (2 * np.pi)
        smooth = (turns - low) / (high - low)
        between = (1 - smooth) * plain / factor + smooth * plain
        return np.where(turns < low, plain / factor, np.where(turns > high, plain, between)), 1.0
    fast, slow = given.get("beta_fast", 32), given.get("beta_slow", 1)
    ends = [dims * np.log(original / (b * 2 * np.pi)) / (2 * np.log(theta)) for b in (fast, slow)]
    if given.get("truncate", True):
        ends = [np.floor(ends[0]), np.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], dims - 1)
    ramp = np.clip((np.arange(dims // 2) - first) / ((last - first) or 0.001), 0, 1)
    scale = 0.1 * np.log(factor) + 1
    if given.get("mscale") and given.get("mscale_all_dim"):
        scale = (0.1 * given["mscale"] * np.log(factor) + 1) / (
            0.1 * given["mscale_all_dim"] * np.log(factor) + 1
        )
    return plain / factor * ramp + plain * (1 - ramp), given.get("attention_factor", scale)


def turned(rows: Floats, inverse: Floats, scale: float) -> Floats:
    """Rows (n, head) at positions 0..n-1, turned in halves as Llama and its heirs turn them."""
    half = len(inverse)
    angles = np.arange(len(rows))[:, None] * inverse[None]
    cos, sin = scale * np.cos(angles), scale * np.sin(angles)
    one, two = rows[:, :half], rows[:, half : 2 * half]
    return np.concatenate(
        [one * cos - two * sin, two * cos + one * sin, rows[:, 2 * half :]], axis=1
    )
