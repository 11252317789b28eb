"""Caches as plain values: compared bit for bit, never by a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from dflash_suite.core.cache.recurrent import GdnCache


def bits(array: mx.array | None) -> tuple[str, tuple[int, ...], bytes] | None:
    """(dtype, shape, bytes): equal only for arrays that are equal to the last bit."""
    if array is None:
        return None
    raw: Any = mx.contiguous(array).view(mx.uint8)  # Any: the stubs do not know its buffer
    return str(array.dtype), tuple(array.shape), bytes(memoryview(raw))


def whole(cache: Sequence[Any]) -> list[Any]:
    """Everything that a cache list holds, scratch rows of KV buffers included: a call that must
    not touch a cache leaves this as it was."""
    values: list[Any] = []
    for layer in cache:
        offset = getattr(layer, "offset", None)
        if isinstance(layer, ArraysCache):
            padding = bits(layer.left_padding), bits(layer.lengths)
            values.append((type(layer), offset, [bits(array) for array in layer.cache], padding))
        else:
            values.append((type(layer), offset, bits(layer.keys), bits(layer.values)))
    return values


def meaning(cache: Sequence[Any]) -> list[Any]:
    """What a cache list means for the next token: recurrent arrays, and the KV rows below the
    offset (rows beyond it are scratch)."""
    values: list[Any] = []
    for layer in cache:
        if isinstance(layer, ArraysCache):
            values.append([bits(array) for array in layer.cache])
        elif layer.keys is None:
            values.append((layer.offset, None, None))
        else:
            kept = slice(0, layer.offset)
            keys, rows = layer.keys[:, :, kept], layer.values[:, :, kept]
            values.append((layer.offset, bits(keys), bits(rows)))
    return values


def fed_alone(model: Any, token_ids: Sequence[int], prompt_tokens: int) -> list[Any]:
    """mlx-lm's own caches, by its own forward, fed with the kept tokens alone: the prompt but its
    last token in one pass, then one token a pass."""
    cache: list[Any] = make_prompt_cache(model)
    body = list(token_ids[: prompt_tokens - 1])
    if body:
        model(mx.array([body]), cache=cache)
    for token in token_ids[len(body) :]:
        model(mx.array([[token]]), cache=cache)
        mx.eval([layer.state for layer in cache])
    return cache


def assert_as_fed_alone(
    cache: Sequence[Any], model: Any, token_ids: Sequence[int], prompt_tokens: int
) -> None:
    """The caches stand at len(token_ids) and are bitwise those of feeding these tokens alone."""
    offsets = [layer.offset for layer in cache]
    assert offsets == [len(token_ids)] * len(cache)
    own, reference = meaning(cache), _reference(model, tuple(token_ids), prompt_tokens)
    assert len(own) == len(reference)
    for index, (mine, stock) in enumerate(zip(own, reference, strict=True)):
        assert mine == stock, f"layer {index} ({type(cache[index]).__name__}) differs"


_KNOWN: dict[tuple[int, tuple[int, ...], int], tuple[Any, list[Any]]] = {}


def _reference(model: Any, token_ids: tuple[int, ...], prompt_tokens: int) -> list[Any]:
    """Many drafters end at the same tokens; their one reference is fed once. The model is kept
    beside it, so that no other one can come to its id."""
    key = id(model), token_ids, prompt_tokens
    if key not in _KNOWN:
        _KNOWN[key] = model, meaning(fed_alone(model, token_ids, prompt_tokens))
    return _KNOWN[key][1]


def recurrent_layers(cache: Sequence[Any]) -> list[GdnCache]:
    """The GDN caches of a hybrid cache list."""
    return [layer for layer in cache if isinstance(layer, GdnCache)]
