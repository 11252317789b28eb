"""The recurrent cache as mlx-lm's own functions use it, and what a cache list is."""

from __future__ import annotations

import copy
import functools
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as stock_caches

from dflash_suite.core.cache import recurrent as caches
from dflash_suite.core.cache.kinds import cache_arrays, cache_kind, require_kind
from dflash_suite.core.errors import UnsupportedCache
from dflash_suite.core.target.target import Target
from tests.kit.snapshots import fed_alone, meaning, whole
from tests.kit.tiny import Kind, make_target, prompt, stock_greedy

pytestmark = pytest.mark.quick

stock: Any = stock_caches
GdnCache: Any = caches.GdnCache
GDN_ARRAYS = [True, True, True, False]


@functools.cache
def tiny_target(kind: Kind = "hybrid") -> Target:
    return make_target(kind)


def filled(ids: list[int]) -> list[Any]:
    target = tiny_target()
    cache = target.make_cache()
    target.forward_with_taps(mx.array([ids]), cache)
    mx.eval(cache_arrays(cache))
    return cache


def test_a_new_cache_is_empty() -> None:
    cache = GdnCache()
    assert cache.empty() and cache.nbytes == 0 and cache.size() == cache.offset == 0
    assert cache[0] is None and cache[1] is None
    assert cache.batch_size == 1 and cache.make_mask(4) is None


def test_a_filled_cache_says_what_it_holds() -> None:
    cache = filled([1, 2, 3, 4, 5])[0]
    assert not cache.empty()
    assert cache.size() == cache.offset == 5
    assert cache.batch_size == 1 and cache.make_mask(4) is None
    assert cache[0].shape == (1, 3, 128) and cache[1].shape == (1, 4, 16, 16)
    assert cache.nbytes == cache[0].nbytes + cache[1].nbytes == 4 * (3 * 128 + 4 * 16 * 16)


def test_it_cannot_be_trimmed_and_says_so() -> None:
    """`is_trimmable` and `trim` agree, so mlx-lm's own trim leaves a hybrid list alone."""
    cache = filled([1, 2, 3])
    assert not cache[0].is_trimmable() and not hasattr(cache[0], "trim")
    before = whole(cache)
    assert stock.can_trim_prompt_cache(cache) is False
    assert stock.trim_prompt_cache(cache, 1) == 0
    assert whole(cache) == before


def test_state_round_trip() -> None:
    cache = filled([1, 2, 3, 4])[1]
    again = GdnCache.from_state(cache.state)
    assert type(again) is GdnCache and whole([again]) == whole([cache])
    other = GdnCache()
    other.state = cache.state
    assert whole([other]) == whole([cache])
    assert len(cache.state) == len(stock.ArraysCache(2).state) + 1


def test_state_is_what_mlx_lm_evaluates() -> None:
    """mlx-lm's prefill calls mx.eval on the states: an int in one is no obstacle."""
    cache = filled([1, 2, 3])
    mx.eval([layer.state for layer in cache])


def test_a_deep_copy_goes_its_own_way() -> None:
    target, cache = tiny_target(), filled([1, 2, 3])
    twin = copy.deepcopy(cache)
    before = whole(cache)
    target.forward_with_taps(mx.array([[4]]), twin)
    assert whole(cache) == before and twin[0].offset == 4


def test_mlx_lms_own_generation_runs_on_it() -> None:
    """Same ids as on the stock caches, same arrays, and the offset is counted right."""
    target = tiny_target()
    model, prompt_ids = target.backbone.model, prompt(11)
    cache = target.make_cache()
    steps = generate_step(mx.array(prompt_ids), model, max_tokens=12, prompt_cache=cache)
    ids = [int(token) for token, _ in steps]
    assert ids == stock_greedy(model, prompt_ids, 12)
    fed = cache[3].offset
    assert [layer.offset for layer in cache] == [fed] * 4 and fed >= 11 + 11
    assert cache[0].nbytes > 0
    whole_ids = [*prompt_ids, *stock_greedy(model, prompt_ids, 14)][:fed]
    assert meaning(cache) == meaning(fed_alone(model, whole_ids, 11))


def test_stock_and_own_forward_share_a_cache() -> None:
    """A cache filled by mlx-lm can go on here, and the reverse."""
    target = tiny_target()
    model = target.backbone.model
    cache = target.make_cache()
    model(mx.array([[1, 2, 3]]), cache=cache)
    target.forward_with_taps(mx.array([[4, 5]]), cache)
    model(mx.array([[6]]), cache=cache)
    assert [layer.offset for layer in cache] == [6] * 4
    assert meaning(cache) == meaning(fed_alone(model, [1, 2, 3, 4, 5, 6], 4))


def test_make_cache_of_each_target() -> None:
    hybrid = tiny_target().make_cache()
    assert [isinstance(layer, GdnCache) for layer in hybrid] == GDN_ARRAYS
    assert type(hybrid[3]) is stock.KVCache
    assert [type(layer) for layer in tiny_target("dense").make_cache()] == [stock.KVCache] * 4
    assert hybrid[0] is not tiny_target().make_cache()[0]


def test_cache_arrays_are_all_that_is_held() -> None:
    assert cache_arrays(tiny_target().make_cache()) == []
    arrays = cache_arrays(filled([1, 2]))
    assert len(arrays) == 3 * 2 + 2


def test_cache_kinds() -> None:
    assert cache_kind([]) == "empty"
    assert cache_kind(tiny_target().make_cache()) == "Hybrid"
    assert cache_kind([stock.ArraysCache(2), stock.KVCache()]) == "Hybrid"
    assert cache_kind([stock.KVCache()]) == "KV"
    assert cache_kind([stock.RotatingKVCache(8)]) == "KV"
    assert cache_kind([object()]) == "unknown"


def test_require_kind_looks_at_every_layer() -> None:
    good = tiny_target().make_cache()
    require_kind(good, "Hybrid", GDN_ARRAYS)
    for index in range(4):
        bad = list(good)
        bad[index] = GdnCache() if index == 3 else stock.KVCache()
        kind = "KV" if index == 3 else "recurrent"
        with pytest.raises(UnsupportedCache, match=f"layer {index} needs a {kind} cache, got"):
            require_kind(bad, "Hybrid", GDN_ARRAYS)
