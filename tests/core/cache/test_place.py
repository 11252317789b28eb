"""One table of cache classes, and the one way back to a place in a list of them."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from dflash_suite.core.cache.fixed import FixedKVCache
from dflash_suite.core.cache.layer_caches import CLASSES, can_drop, class_of, kind_of, window_of
from dflash_suite.core.cache.place import can_come_back, come_back, take_place, takes_back_any_row
from dflash_suite.core.cache.recurrent import GdnCache
from dflash_suite.core.cache.sliding import SlidingCache
from dflash_suite.core.errors import RollbackError, UnsupportedCache
from tests.kit.places import ROOT
from tests.kit.snapshots import meaning, whole
from tests.kit.tiny import make_target, prompt

pytestmark = pytest.mark.quick

WINDOW = 5
MAKERS: dict[str, Any] = {
    "gdn": GdnCache,
    "arrays": lambda: ArraysCache(2),
    "sliding": partial(cast(Any, SlidingCache), WINDOW),
    "ring": partial(cast(Any, RotatingKVCache), WINDOW),
    "fixed": lambda: FixedKVCache(64),
    "kv": KVCache,
}


def feed(layer: Any, count: int, seed: int = 0) -> None:
    """`count` rows, in one pass, into a cache of any class."""
    if kind_of(layer) == "recurrent":
        layer[0], layer[1] = mx.full((1, 3, 2), seed), mx.full((1, 2, 2, 2), seed)
        layer.advance(count)
        return
    new = mx.random.normal((1, 1, count, 2), key=mx.random.key(seed))
    layer.update_and_fetch(new, -new)


@pytest.mark.parametrize("name", MAKERS)
def test_every_row_comes_back_to_a_lasting_place(name: str) -> None:
    """After a block, and after single rows that wrap a ring and overwrite it; more than once."""
    layer = MAKERS[name]()
    feed(layer, 7)
    place, before = take_place([layer], lasting=True), meaning([layer])
    for counts in ([3], [1] * 9):
        for seed, count in enumerate(counts, start=1):
            feed(layer, count, seed)
        assert meaning([layer]) != before
        come_back([layer], place)
        assert meaning([layer]) == before


def test_a_ring_is_copied_for_a_lasting_place_alone() -> None:
    layer = MAKERS["sliding"]()
    feed(layer, 2)
    passing, lasting = take_place([layer]), take_place([layer], lasting=True)
    assert passing.held == (None,) and lasting.held != (None,)
    feed(layer, WINDOW - 2)
    assert can_come_back([layer], passing), "nothing has left the window"
    feed(layer, 1)
    assert not can_come_back([layer], passing), "a single row took the place of the first"
    assert can_come_back([layer], lasting)


def test_one_layer_that_cannot_go_back_leaves_all_as_they_are() -> None:
    cache = [MAKERS[name]() for name in ("gdn", "kv", "sliding")]
    for layer in cache:
        feed(layer, 7)
    place = take_place(cache)
    for layer in cache:
        feed(layer, 1, seed=1)
    before = whole(cache)
    with pytest.raises(RollbackError, match="cannot go back to 7 tokens; start afresh"):
        come_back(cache, place)
    with pytest.raises(RollbackError):
        come_back(cache[:2], place)
    assert whole(cache) == before


def test_nothing_goes_forward() -> None:
    """A layer that stands before the place is not the one that it was taken of."""
    for name in ("gdn", "kv", "fixed", "sliding", "ring"):
        layer = MAKERS[name]()
        feed(layer, 4)
        place = take_place([layer], lasting=True)
        assert can_come_back([layer], place)
        fresh = MAKERS[name]()
        feed(fresh, 3)
        assert not can_come_back([fresh], place), name


def test_a_place_of_other_kinds_of_layers_is_refused() -> None:
    caches = {name: make() for name, make in MAKERS.items()}
    for layer in caches.values():
        feed(layer, 4)
    places = {name: take_place([layer], lasting=True) for name, layer in caches.items()}
    kinds = [("gdn", "kv"), ("gdn", "sliding"), ("kv", "gdn"), ("sliding", "gdn"), ("ring", "kv")]
    for mine, theirs in kinds:
        assert not can_come_back([caches[theirs]], places[mine]), (mine, theirs)


def test_a_target_comes_back_bit_for_bit() -> None:
    target = make_target("hybrid")
    cache = target.make_cache()
    target.forward_with_taps(mx.array([prompt(9)]), cache)
    place, before = take_place(cache), meaning(cache)
    assert place.position == 9 and takes_back_any_row(cache)
    target.forward_with_taps(mx.array([[3]]), cache)
    come_back(cache, place)
    assert meaning(cache) == before


def test_what_each_row_says() -> None:
    expected: dict[str, tuple[str, bool, bool]] = {
        "gdn": ("recurrent", True, True),
        "arrays": ("recurrent", False, True),
        "sliding": ("KV", True, False),
        "ring": ("KV", False, False),
        "fixed": ("KV", True, True),
        "kv": ("KV", True, True),
    }
    for name, make in MAKERS.items():
        row = class_of(make())
        assert (row.kind, row.rolls_back, row.takes_back_any_row) == expected[name]
    assert window_of(MAKERS["sliding"]()) == WINDOW and window_of(MAKERS["kv"]()) is None
    assert not can_drop(MAKERS["kv"](), 1) and not can_drop(MAKERS["gdn"](), 0)


def test_a_class_in_no_row_is_told_by_what_it_can_do() -> None:
    make: Any = QuantizedKVCache
    assert kind_of(make()) == "KV" and not class_of(make()).rolls_back
    assert kind_of(object()) == "unknown" and not can_drop(object(), 1)
    with pytest.raises(UnsupportedCache, match="object cannot come back to an earlier row"):
        take_place([object()], lasting=True)


def test_a_subclass_stands_before_its_base() -> None:
    classes = [cache_class for cache_class, _ in CLASSES]
    for index, cache_class in enumerate(classes):
        assert not any(issubclass(cache_class, earlier) for earlier in classes[:index])


def test_nobody_else_looks_at_the_class_of_a_cache() -> None:
    """One table: no isinstance over cache classes, and no telling them by what they have."""
    names = {known.__name__ for known, _ in CLASSES}
    telling = {"_idx", "cache", "update_and_fetch"}
    home = ROOT / "core" / "cache" / "layer_caches.py"
    parts = ("core", "doctor", "drafters")
    for file in (file for part in parts for file in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            asked = {one.id for arg in node.args[1:] for one in ast.walk(arg)
                     if isinstance(one, ast.Name)}  # fmt: skip
            said = {arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)}
            if node.func.id in ("isinstance", "issubclass"):
                assert not asked & names, f"{file}:{node.lineno}"
            if node.func.id == "hasattr" and file != home:
                assert not said & telling, f"{file}:{node.lineno}"
