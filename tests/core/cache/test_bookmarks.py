"""A lasting bookmark of any cache survives whatever is fed afterwards: every kind of cache, any
passes before and after it, more than one return."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from dflash_suite.core.cache.fixed import FixedKVCache
from dflash_suite.core.cache.layer_caches import CLASSES, kind_of
from dflash_suite.core.cache.place import come_back, take_place
from dflash_suite.core.cache.recurrent import GdnCache
from dflash_suite.core.cache.sliding import SlidingCache
from tests.kit.snapshots import meaning

WINDOW = 4
MAKERS: dict[str, Any] = {
    "gdn": GdnCache,
    "arrays": lambda: ArraysCache(2),
    "sliding": partial(cast(Any, SlidingCache), WINDOW),
    "ring": partial(cast(Any, RotatingKVCache), WINDOW),
    "fixed": lambda: FixedKVCache(64),
    "kv": KVCache,
}
PASSES = st.lists(st.integers(1, WINDOW + 2), min_size=1, max_size=7)
"""Rows of each pass: single ones, which a ring writes in place, and blocks wider than a window."""


def feed(layer: Any, passes: Sequence[int], seed: int) -> None:
    """Distinct rows, pass by pass."""
    for number, count in enumerate(passes):
        marked = 100.0 * seed + number
        if kind_of(layer) == "recurrent":
            layer[0], layer[1] = mx.full((1, 3, 2), marked), mx.full((1, 2, 2, 2), -marked)
            layer.advance(count)
        else:
            rows = marked + mx.arange(count)[None, None, :, None] / 10 * mx.ones((1, 1, 1, 2))
            layer.update_and_fetch(rows, -rows)


def returns_to_a_bookmark(layer: Any, before: Sequence[int], after: Sequence[int]) -> None:
    """Mark, feed on, come back; twice, since coming back must not use the bookmark up."""
    feed(layer, before, seed=1)
    place, meant = take_place([layer], lasting=True), meaning([layer])
    for seed in (2, 3):
        feed(layer, after, seed)
        come_back([layer], place)
        assert meaning([layer]) == meant


@pytest.mark.quick
@pytest.mark.parametrize("name", MAKERS)
@given(before=PASSES, after=PASSES)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_a_bookmark_survives_whatever_is_fed_after_it(
    name: str, before: list[int], after: list[int]
) -> None:
    returns_to_a_bookmark(MAKERS[name](), before, after)


def test_every_class_of_the_table_is_among_them() -> None:
    assert {type(make()) for make in MAKERS.values()} == {known for known, _ in CLASSES}
