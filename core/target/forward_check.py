"""Is the suite's forward mlx-lm's own, to the last bit, on this device and model?

Run once at load, on a prompt of a few rows, a block and a single row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from ..errors import CheckpointError, ForwardMismatch, described
from .target import Target

CHECK_ROWS = (5, 3, 1)
"""A prompt, a block over a filled cache, one decode step."""


def check_forward(target: Target) -> None:
    """Raise ForwardMismatch unless logits equal the stock model's bitwise (NaN equals NaN), and
    CheckpointError where the stock model itself cannot run."""
    for rows, stock, own in _passes(target):
        if not mx.array_equal(stock, own, equal_nan=True):
            raise ForwardMismatch(
                f"{target.config.file}: the suite's forward of {target.config.model_type} differs "
                f"from mlx-lm's own {_difference(stock, own)} over {rows} rows; the installed "
                "mlx-lm computes this model in another way than the tested 0.32.2, so nothing was "
                "decoded. Install mlx-lm 0.32.2 or report the version"
            )


def trace_forward(target: Target) -> None:
    """Put the passes of check_forward together, without computing them: MLX sees every shape, and
    no weight is read. Raises as check_forward, but for logits that differ in their bits."""
    for _ in _passes(target):
        pass


def _passes(target: Target) -> Iterator[tuple[int, mx.array, mx.array]]:
    """(rows, mlx-lm's logits, the suite's) of each pass; lazy, nothing is computed yet."""
    vocab = target.config.vocab_size
    stock_cache, own_cache = _stock_cache(target), target.make_cache()
    start = 0
    for rows in CHECK_ROWS:
        # Spread over the vocabulary, so that no two rows are alike.
        ids = mx.array([[(7919 * index + 11) % vocab for index in range(start, start + rows)]])
        start += rows
        yield rows, _stock_logits(target, ids, stock_cache), _own_logits(target, ids, own_cache)


def _difference(stock: mx.array, own: mx.array) -> str:
    if stock.shape != own.shape:
        return f"in shape ({own.shape} for {stock.shape})"
    largest = mx.abs(stock.astype(mx.float32) - own.astype(mx.float32)).max().item()
    return f"by up to {largest:.3g}"


def _stock_cache(target: Target) -> list[Any]:
    try:
        return make_prompt_cache(target.backbone.model)
    except Exception as exc:  # as below
        raise _not_running(target, exc) from exc


def _stock_logits(target: Target, ids: mx.array, cache: list[Any]) -> mx.array:
    try:
        logits: mx.array = target.backbone.model(ids, cache=cache)
    except Exception as exc:  # settings that fit the weights and no operation
        raise _not_running(target, exc) from exc
    return logits


def _not_running(target: Target, exc: Exception) -> CheckpointError:
    return CheckpointError(
        f"{target.config.file}: mlx-lm's own forward of {target.config.model_type} fails "
        f"({described(exc)}); a setting does not fit this model"
    )


def _own_logits(target: Target, ids: mx.array, cache: list[Any]) -> mx.array:
    try:
        return target.logits_from_hidden(target.forward_with_taps(ids, cache).hidden)
    except (AttributeError, TypeError, ValueError) as exc:
        raise ForwardMismatch(
            f"{target.config.file}: the suite's forward of {target.config.model_type} cannot run "
            f"on the modules of the installed mlx-lm ({described(exc)}); it is tested "
            "with mlx-lm 0.32.2"
        ) from exc
