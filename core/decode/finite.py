"""Logits that are no numbers: found by the token that they lead to, named by layer afterwards.

An argmax over NaN, and a draw from NaN, give the vocabulary's first or last id. So logits are
looked at where one of these is chosen, and never else: a token that is any other costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..errors import LogitsNotFinite
from ..target.target import Target, TargetPass

LAYERS_AT_ONCE = 8


def require_finite(
    target: Target, row_ids: mx.array, result: TargetPass, tokens: Sequence[int]
) -> None:
    """LogitsNotFinite where the tokens of a pass come from NaN or infinity.

    row_ids: (T,) what was fed. Minus infinity is an impossible token, and legitimate.
    """
    if not {0, target.config.vocab_size - 1}.intersection(tokens):
        return
    rows = min(len(tokens), result.hidden.shape[1])
    logits = target.logits_from_hidden(result.hidden[:, :rows])
    if not _is_broken(logits):
        return
    layer = first_broken_layer(target, row_ids)
    where = (
        "these come from what the caches hold"
        if layer is None
        else f"layer {layer} of {len(target.backbone.layers)} (counted from 0) is the first whose "
        "output is not"
    )
    raise LogitsNotFinite(
        f"{target.config.path}: the logits are not finite, and {where}; the weights are damaged, "
        "or too large for the compute dtype: fetch them again, or try --dtype float32"
    )


def first_broken_layer(target: Target, row_ids: mx.array) -> int | None:
    """The first layer whose output for these rows (T,) alone is not finite, by passes over fresh
    caches; None where every layer's is."""
    layers = len(target.backbone.layers)
    ids = row_ids[-1:][None]
    for start in range(0, layers, LAYERS_AT_ONCE):
        taps = tuple(range(start, min(start + LAYERS_AT_ONCE, layers)))
        cache = target.make_cache(1)
        tapped = target.forward_with_taps(ids, cache, taps).taps
        if tapped is None:
            return None
        for tap, output in zip(taps, mx.split(tapped, len(taps), axis=-1), strict=True):
            if _is_broken(output):
                return tap
    return None


def _is_broken(values: mx.array) -> bool:
    return bool((mx.isnan(values) | (values == mx.inf)).any().item())
