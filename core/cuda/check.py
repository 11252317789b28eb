"""Is the fused forward the plain one, up to rounding, on this device and model?

The plain one is mlx-lm's own to the last bit (`core/probe.py`); the fused kernels add in another
order, so that bitwise equality is not to be had, and is not claimed.
"""

from __future__ import annotations

import mlx.core as mx

from ..errors import ProbeFailed
from ..probe import PROBE_ROWS
from ..target import Target

TOLERANCES = {mx.float32: 1e-3, mx.bfloat16: 5e-2, mx.float16: 2e-2}
"""Largest norm of the difference of a row's logits over the norm of the row, by compute dtype."""


def probe_fused(plain: Target, fused: Target) -> None:
    """Raise ProbeFailed unless the fused logits are within tolerance, row for row, and choose the
    same token wherever the plain margin is over twice the largest difference of that row."""
    vocab = plain.config.vocab_size
    caches = plain.make_cache(), fused.make_cache()
    start = 0
    for rows in PROBE_ROWS:
        ids = mx.array([[(7919 * index + 11) % vocab for index in range(start, start + rows)]])
        start += rows
        logits = [
            target.logits_from_hidden(target.verify_rows(ids, cache, ()).hidden)[0]
            for target, cache in zip((plain, fused), caches, strict=True)
        ]
        error, flipped = compare(*(array.astype(mx.float32) for array in logits))
        allowed = TOLERANCES[logits[0].dtype]
        if not error <= allowed or flipped:
            raise ProbeFailed(
                f"{plain.config.file}: the fused CUDA kernels differ from the plain forward of "
                f"{plain.config.model_type} by {error:.2g} of a row's norm over {rows} rows "
                f"(allowed {allowed:.2g}; {flipped} clear choices differ), so nothing was "
                "decoded. Report the GPU and the MLX version"
            )


def compare(plain: mx.array, fused: mx.array) -> tuple[float, int]:
    """(largest relative row difference, rows whose clear choice differs) of (T, vocab) logits."""
    difference = mx.abs(plain - fused)
    error = mx.linalg.norm(plain - fused, axis=-1) / mx.linalg.norm(plain, axis=-1)
    top = mx.sort(plain, axis=-1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > 2 * difference.max(axis=-1)
    differs = mx.argmax(plain, axis=-1) != mx.argmax(fused, axis=-1)
    flips: list[bool] = (clear & differs).tolist()  # type: ignore[assignment]
    errors: list[float] = error.tolist()  # type: ignore[assignment]
    return max(errors), sum(flips)
