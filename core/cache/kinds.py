"""A whole list of layer caches: what kind it is, where it stands, and copies of it.

A hybrid target has a recurrent cache per Gated DeltaNet layer and a KV cache per attention layer;
a plain transformer has KV caches only, of which some may slide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx

from ..errors import CacheError, UnsupportedCache
from .layer_caches import class_of, kind_of, offset_of

CacheKind = Literal["Hybrid", "KV", "empty", "unknown"]


def cache_kind(cache: Sequence[Any]) -> CacheKind:
    """What a cache list is, by the classes of its layers."""
    kinds = [kind_of(layer) for layer in cache]
    if not kinds:
        return "empty"
    if "recurrent" in kinds:
        return "Hybrid"
    return "unknown" if "unknown" in kinds else "KV"


def require_kind(cache: Sequence[Any], expected: CacheKind, recurrent: Sequence[bool]) -> None:
    """Raise UnsupportedCache unless `cache` fits a target whose layer i is recurrent or not.

    The message names both kinds; a list of the wrong length or with a layer of the wrong
    class is refused too, so that `zip` can never drop a decoder layer.
    """
    require_list_kind(cache, expected)
    if len(cache) != len(recurrent):
        raise UnsupportedCache(
            f"the target has {len(recurrent)} layers and the cache has {len(cache)}: make it "
            "with the target's own make_cache()"
        )
    for index, (layer, is_recurrent) in enumerate(zip(cache, recurrent, strict=True)):
        if (kind_of(layer) == "recurrent") != is_recurrent:
            kind = "recurrent" if is_recurrent else "KV"
            raise UnsupportedCache(
                f"layer {index} needs a {kind} cache, got {type(layer).__name__}"
            )
        padded = getattr(layer, "lengths", None), getattr(layer, "left_padding", None)
        if any(entry is not None for entry in padded):
            raise UnsupportedCache(
                f"layer {index} has a padded batch cache; one sequence at a time is decoded"
            )


def require_list_kind(cache: Sequence[Any], expected: CacheKind) -> None:
    """Raise UnsupportedCache, naming both kinds, unless the list is of the expected one."""
    found = cache_kind(cache)
    if found != expected:
        raise UnsupportedCache(
            f"expected {expected} cache, got {found}: make it with the target's own make_cache()"
        )


def validate_absolute_boundary(cache: Sequence[Any], expected: int) -> None:
    """Every layer stands at `expected` tokens, else CacheError names the first other one."""
    for index, layer in enumerate(cache):
        offset = offset_of(layer)
        if offset is not None and offset != expected:
            raise CacheError(
                f"layer {index} of the cache stands at {offset} tokens, expected {expected}"
            )


def fork_cache(cache: Sequence[Any]) -> list[Any]:
    """The same contents in caches of their own: what one is fed later, the other never sees."""
    return [class_of(layer).fork(layer) for layer in cache]


def compact_cache(cache: Sequence[Any]) -> None:
    """Let go of the buffers' rows that are not in use: what was forgotten, or is yet to come."""
    for layer in cache:
        class_of(layer).compact(layer)


def cache_arrays(cache: Sequence[Any]) -> list[mx.array]:
    """Every array that the caches hold, for one evaluation; of a cut what it is cut from."""
    return [array for layer in cache for array in class_of(layer).arrays(layer)]
