"""A KV cache of a fixed size: the same attention, up to rounding, over a number of keys that never
changes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from dflash_suite.core.cache import fixed as fixed_cache
from dflash_suite.core.cache.fixed import FixedKVCache
from dflash_suite.core.cache.layer_caches import can_drop, held_rows, window_of
from dflash_suite.core.cache.make import CAPACITY_STEP, fixed_caches
from dflash_suite.core.cache.recurrent import GdnCache
from dflash_suite.core.cache.sliding import SlidingCache
from dflash_suite.core.errors import CacheError, UnsupportedCache
from tests.kit.families import SLIDING, load_family, save_family
from tests.kit.snapshots import bits, whole
from tests.kit.tiny import make_target, prompt
from tests.kit.tiny_drafter import largest


def rows(count: int, seed: int = 0) -> mx.array:
    return mx.random.normal((1, 2, count, 4), key=mx.random.key(seed))


def test_it_hands_out_the_whole_buffer() -> None:
    cache = FixedKVCache(8)
    for start, count in ((0, 3), (3, 1), (4, 4)):
        keys, values = cache.update_and_fetch(rows(count, start), rows(count, start + 9))
        assert keys.shape == values.shape == (1, 2, 8, 4)
        assert bits(keys[:, :, start : start + count]) == bits(rows(count, start))
        assert bits(values[:, :, start : start + count]) == bits(rows(count, start + 9))
        assert cache.offset == start + count


def test_more_than_the_device_has_is_refused_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 rows x 2 heads x 4 x 4 bytes, keys and values, of two layers: 32,768 bytes."""
    fresh: Any = KVCache
    caches = fixed_caches([fresh(), fresh()], 200)
    monkeypatch.setattr(fixed_cache, "memory_bytes", lambda: 32_767)
    with pytest.raises(CacheError, match="of 256 tokens at a fixed size need .* --no-exact"):
        caches[0].update_and_fetch(rows(3), rows(3))
    assert caches[0].keys is None and caches[0].offset == 0
    monkeypatch.setattr(fixed_cache, "memory_bytes", lambda: 32_768)
    assert caches[0].update_and_fetch(rows(3), rows(3))[0].shape == (1, 2, 256, 4)
    with pytest.raises(CacheError, match="100,000,000,000,000 tokens are too many"):
        fixed_caches([fresh()], 10**14)


def test_what_does_not_fit_is_refused_and_nothing_changes() -> None:
    cache = FixedKVCache(4)
    cache.update_and_fetch(rows(3), rows(3))
    before = whole([cache])
    with pytest.raises(CacheError, match="a cache of 4 rows holds 3 and cannot take 2 more"):
        cache.update_and_fetch(rows(2), rows(2))
    assert whole([cache]) == before


def test_the_mask_shows_a_row_itself_and_those_before() -> None:
    cache = FixedKVCache(6)
    cache.update_and_fetch(rows(2), rows(2))
    mask: Any = cache.make_mask(3).tolist()
    assert [row.index(False) for row in mask] == [3, 4, 5]
    assert [sum(row) for row in mask] == [3, 4, 5]
    one: Any = cache.make_mask(1, return_array=True).tolist()
    assert one == [[True] * 3 + [False] * 3]


@pytest.mark.parametrize("own", [True, False])
def test_the_mask_of_a_window(own: bool) -> None:
    cache = FixedKVCache(6, window=2 if own else None)
    cache.update_and_fetch(rows(3), rows(3))
    mask: Any = cache.make_mask(2, window_size=None if own else 2).tolist()
    assert mask == [[False, False, True, True, False, False], [False] * 3 + [True, True, False]]


def test_any_rows_can_be_dropped_behind_a_window_too() -> None:
    cache: Any = FixedKVCache(16, window=3)
    cache.update_and_fetch(rows(10), rows(10))
    cache.update_and_fetch(rows(4, 1), rows(4, 2))
    assert can_drop(cache, 4) and cache.trim(4) == 4 and cache.offset == 10
    cache.update_and_fetch(rows(1, 3), rows(1, 4))
    keys, values = held_rows(cache)
    assert bits(keys) == bits(mx.concatenate([rows(10), rows(1, 3)], axis=2))
    assert bits(values) == bits(mx.concatenate([rows(10), rows(1, 4)], axis=2))


def test_recurrent_layers_keep_their_cache() -> None:
    made = fixed_caches(make_target().make_cache(), CAPACITY_STEP + 1)
    assert [type(layer) for layer in made] == [GdnCache, GdnCache, GdnCache, FixedKVCache]
    assert made[3].capacity == 2 * CAPACITY_STEP and made[3].window is None


def test_a_cache_that_keeps_its_first_rows_has_no_fixed_form() -> None:
    make: Any = SlidingCache
    with pytest.raises(UnsupportedCache, match="keeps its first 4 rows"):
        fixed_caches([make(16, 4)], 10)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "qwen3_5_moe", *SLIDING])
def test_the_logits_of_every_family_are_those_of_its_own_caches(name: str, tmp_path: Any) -> None:
    """Within rounding: the sum over the keys runs in another order."""
    target = load_family(save_family(tmp_path, name)).target
    stock = target.make_cache()
    fixed = fixed_caches(target.make_cache(), 40)
    windows = [window_of(layer) for layer in stock]
    assert windows == [window_of(layer) for layer in fixed]
    assert (name in SLIDING) == any(windows)
    ids, start = prompt(40), 0
    for count in (20, 6, 1, 1, 5):
        block = mx.array([ids[start : start + count]])
        start += count
        expected, found = (
            target.logits_from_hidden(target.forward_with_taps(block, cache).hidden)
            for cache in (stock, fixed)
        )
        assert largest(expected - found) < 1e-4 * largest(expected)
    assert start > 2 * max([window for window in windows if window], default=1)
