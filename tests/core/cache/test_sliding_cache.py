"""The sliding cache against a plain list of rows, at every offset around the wrap of its ring."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from dflash_suite.core.cache.layer_caches import can_drop
from dflash_suite.core.cache.make import own_caches
from dflash_suite.core.cache.recurrent import GdnCache
from dflash_suite.core.cache.sliding import SlidingCache
from tests.kit.snapshots import whole

WINDOW = 5


def make(window: int = WINDOW, kind: Any = SlidingCache) -> Any:
    """A cache of a class of mlx-lm's, which are not annotated."""
    return kind(window)


def rows(start: int, count: int) -> mx.array:
    """(1, 1, count, 2): row i holds i, so that a row tells where it came from."""
    return mx.repeat(mx.arange(start, start + count, dtype=mx.float32)[:, None], 2, 1)[None, None]


def feed(cache: Any, count: int) -> list[int]:
    """Feed `count` rows and return the positions that attention sees, in the order it sees them."""
    new = rows(cache.offset, count)
    keys, values = cache.update_and_fetch(new, -new)
    assert mx.array_equal(keys, -values)
    return [int(value) for value in keys[0, 0, :, 0].tolist()]


def held(cache: Any) -> list[int]:
    """The window's rows, oldest first."""
    order: Any = cache._temporal_order
    count = min(cache.offset, cache.max_size)
    return [int(value) for value in order(cache.keys)[0, 0, -count:, 0].tolist()]


@pytest.mark.parametrize("singles", [0, 1, 2, 7])
def test_any_kept_prefix_at_any_offset(singles: int) -> None:
    """Prompt, plain steps, block, rollback; then a plain step or the next block."""
    wrapped = 0
    for start, block in itertools.product(range(1, 3 * WINDOW), range(2, 8)):
        for keep, following in itertools.product(range(1, block + 1), (1, 3)):
            cache = make()
            feed(cache, start)
            for _ in range(singles):
                feed(cache, 1)
            begin = start + singles
            feed(cache, block)
            drop = block - keep
            assert can_drop(cache, drop)
            assert cache.trim(drop) == drop
            end = begin + keep
            assert cache.offset == end
            assert held(cache) == list(range(max(0, end - WINDOW), end))
            seen = feed(cache, following)
            assert set(range(max(0, end + 1 - WINDOW), end + following)) <= set(seen)
            assert sorted(seen) == list(range(min(seen), end + following))
            wrapped += end > WINDOW and drop > 0
    assert wrapped > 400


def test_a_row_written_over_the_oldest_cannot_be_taken_back() -> None:
    cache = make()
    feed(cache, WINDOW)
    assert can_drop(cache, 1)  # full, and nothing overwritten yet
    feed(cache, 1)
    before = whole([cache])
    assert not cache.is_trimmable() and not can_drop(cache, 1)
    assert cache.trim(1) == 0
    assert whole([cache]) == before


def test_more_than_the_block_cannot_be_dropped() -> None:
    cache = make()
    feed(cache, 2 * WINDOW)
    feed(cache, 3)
    before = whole([cache])
    assert can_drop(cache, 2)
    for count in (3, 4, 13, 14, -1):
        # 3 would leave the WINDOW - 1 rows before the block: too few for a plain step.
        assert not can_drop(cache, count) and cache.trim(count) == 0
    assert whole([cache]) == before


def test_full_acceptance_touches_nothing() -> None:
    cache = make()
    feed(cache, 9)
    feed(cache, 4)
    keys, values = cache.keys, cache.values
    assert cache.trim(0) == 0
    assert cache.keys is keys and cache.values is values


def test_mlx_lm_would_refuse_where_this_one_can() -> None:
    """The reason for a class of our own: the stock cache has no way back once the ring is full."""
    stock = make(kind=RotatingKVCache)
    for cache in (stock, own := make()):
        feed(cache, 9)
        feed(cache, 4)
    assert not stock.is_trimmable() and not can_drop(stock, 2)
    assert own.is_trimmable() and can_drop(own, 2)


def test_only_fresh_sliding_caches_are_replaced() -> None:
    full: Any = KVCache
    stock = [make(7, RotatingKVCache), full(), make(9)]
    own = own_caches(stock)
    assert [type(layer) for layer in own] == [SlidingCache, KVCache, SlidingCache]
    assert own[0].max_size == 7 and own[1] is stock[1] and own[2] is stock[2]


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_methods_of_mlx_lms_base_work(wrapped: bool) -> None:
    """E18: `empty`, `nbytes`, `size`, `state` and their like on the suite's own classes."""
    cache = make()
    assert cache.empty() and cache.nbytes == 0 and cache.size() == 0
    feed(cache, 3 * WINDOW if wrapped else 3)
    feed(cache, 2)
    assert not cache.empty() and cache.nbytes > 0
    assert cache.size() == min(cache.offset, WINDOW)
    copied: Any = type(cache).from_state(cache.state)
    assert type(copied) is SlidingCache and whole([copied]) == whole([cache])
    assert copied.trim(1) == cache.trim(1) == 1
    assert feed(copied, 1) == feed(cache, 1)


def test_the_base_methods_of_the_recurrent_cache_work() -> None:
    cache: Any = GdnCache()
    assert cache.empty() and cache.nbytes == 0 and cache.size() == 0
    cache[0], cache[1] = mx.ones((1, 3, 4)), mx.ones((1, 2, 4, 4))
    cache.advance(5)
    assert not cache.empty() and cache.nbytes == 4 * (12 + 32) and cache.size() == 5
    assert not cache.is_trimmable()
    copied = type(cache).from_state(cache.state)
    assert copied.offset == 5 and whole([copied]) == whole([cache])
