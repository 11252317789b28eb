"""Is the suite's forward mlx-lm's own, to the last bit, on this device and model?

Run once at load, on a prompt of a few rows, a block and a single row.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from .errors import ProbeFailed
from .target import Target

PROBE_ROWS = (5, 3, 1)
"""A prompt, a block over a filled cache, one decode step."""


def probe_forward(target: Target) -> None:
    """Raise ProbeFailed unless logits equal the stock model's bitwise (NaN equals NaN)."""
    model: Any = target.backbone.model
    vocab = target.config.vocab_size
    stock_cache, own_cache = make_prompt_cache(model), target.make_cache()
    start = 0
    for rows in PROBE_ROWS:
        # Spread over the vocabulary, so that no two rows are alike.
        ids = mx.array([[(7919 * index + 11) % vocab for index in range(start, start + rows)]])
        start += rows
        stock = model(ids, cache=stock_cache)
        own = target.logits_from_hidden(target.forward_with_taps(ids, own_cache).hidden)
        if stock.shape != own.shape or not mx.array_equal(stock, own, equal_nan=True):
            difference = mx.abs(stock.astype(mx.float32) - own.astype(mx.float32)).max().item()
            raise ProbeFailed(
                f"{target.config.file}: the suite's forward of {target.config.model_type} differs "
                f"from mlx-lm's own by up to {difference:.3g} over {rows} rows; the installed "
                "mlx-lm computes this model in another way than the tested 0.32.2, so nothing was "
                "decoded. Install mlx-lm 0.32.2 or report the version"
            )
