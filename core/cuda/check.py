"""Is the fused forward the plain one, up to rounding, on this device and model?

The plain one is mlx-lm's own to the last bit (`core/target/forward_check.py`); the fused kernels
add in another order, so that bitwise equality is not to be had, and is not claimed.
"""

from __future__ import annotations

import mlx.core as mx

from ..errors import ForwardMismatch
from ..target.forward_check import CHECK_ROWS
from ..target.target import Target

TOLERANCES = {mx.float32: 1e-2, mx.float16: 0.1, mx.bfloat16: 0.2}
"""Most that a row of logits may differ, as the norm of the difference over the norm of the row.

Two right orders of addition differ by 0.03 to 0.06 in bfloat16 over 8 layers of random weights; a
wrong kernel gives about 1.4, unrelated rows."""
MAX_REGRET = 0.5
"""Most that the plain logit of the fused choice may lie under the plain maximum, in standard
deviations of the row."""


def check_fused(plain: Target, fused: Target) -> None:
    """Raise ForwardMismatch unless the fused logits are the plain ones within TOLERANCES and every
    fused choice is one of the plain forward's best within MAX_REGRET."""
    vocab = plain.config.vocab_size
    caches = plain.make_cache(), fused.make_cache()
    start = 0
    for rows in CHECK_ROWS:
        ids = mx.array([[(7919 * index + 11) % vocab for index in range(start, start + rows)]])
        start += rows
        logits = [
            target.logits_from_hidden(target.verify_rows(ids, cache, ()).hidden)[0]
            for target, cache in zip((plain, fused), caches, strict=True)
        ]
        error, regret = compare(*(array.astype(mx.float32) for array in logits))
        allowed = TOLERANCES[logits[0].dtype]
        if not (error <= allowed and regret <= MAX_REGRET):
            raise ForwardMismatch(
                f"{plain.config.file}: the fused CUDA kernels differ from the plain forward of "
                f"{plain.config.model_type} by {error:.2g} of a row's norm over {rows} rows "
                f"(allowed {allowed:.2g}), and choose tokens up to {regret:.2g} deviations under "
                f"the best (allowed {MAX_REGRET:.2g}), so nothing was decoded. Report the GPU and "
                "the MLX version"
            )


def compare(plain: mx.array, fused: mx.array) -> tuple[float, float]:
    """(largest relative row difference, largest regret) of two (T, vocab) rows of logits."""
    error = mx.linalg.norm(plain - fused, axis=-1) / mx.linalg.norm(plain, axis=-1)
    choice = mx.argmax(fused, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(plain, choice, axis=-1)[:, 0]
    regret = (plain.max(axis=-1) - chosen) / mx.sqrt(mx.var(plain, axis=-1))
    worst: list[float] = mx.stack([error.max(), regret.max()]).tolist()  # type: ignore[assignment]
    return worst[0], worst[1]
