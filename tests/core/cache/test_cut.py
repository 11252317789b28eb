"""A fused rollback makes no array: caches hold a cut, the next pass begins inside it, and whoever
reads them finds what slicing at once would have given."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from dflash_suite.core.cache.kinds import cache_arrays, fork_cache
from dflash_suite.core.cache.layer_caches import cut_of, held_rows, put
from dflash_suite.core.cache.place import come_back, take_place
from dflash_suite.core.cache.recurrent import Cut, GdnCache
from dflash_suite.core.cuda.backbone import FusedBackbone
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from dflash_suite.core.decode.lookahead import Lookahead
from dflash_suite.core.errors import RollbackError
from dflash_suite.core.target.target import Target, TargetPass
from tests.kit.cuda_on_cpu import COMPILER
from tests.kit.snapshots import bits, meaning, whole
from tests.kit.tiny import make_target, prompt

pytestmark = pytest.mark.quick

ROWS, FED, KEEP = 5, 6, 2
GDN = (0, 1, 2, 4, 5)
IDS = prompt(60)


class CountingKernels(OpKernels):
    """Notes how many rows of the block before each recurrence was told that were kept."""

    def __init__(self) -> None:
        self.keeps: list[int] = []

    def gdn(self, *given: Any) -> tuple[mx.array, mx.array, mx.array]:
        self.keeps.append(0 if given[-1] is None else given[-1].tolist()[1])
        return super().gdn(*given)


def fused_target(compile: Callable[..., Any] = lambda function: function) -> Target:
    plain = make_target("hybrid", "float32", num_hidden_layers=6)
    return Target(FusedBackbone(plain.backbone.model, CountingKernels(), compile), plain.config)


def told_by(target: Target, ids: Sequence[int], cache: Any) -> tuple[TargetPass, list[int]]:
    """A pass over some rows, and what it tells the recurrences."""
    kernels: Any = target.backbone
    kernels._kernels.keeps.clear()
    result = target.verify_rows(mx.array([list(ids)]), cache, (0, 3, 5))
    return result, list(kernels._kernels.keeps)


def verified(target: Target, rows: int = ROWS) -> tuple[list[Any], TargetPass]:
    cache = target.make_cache()
    target.forward_with_taps(mx.array([IDS[:FED]]), cache)
    return cache, target.verify_rows(mx.array([IDS[FED : FED + rows]]), cache, ())


def rolled_back(target: Target, keep: int = KEEP, rows: int = ROWS) -> list[Any]:
    """A cache whose recurrent layers hold cuts."""
    cache, result = verified(target, rows)
    target.rollback(cache, result.tape, keep, rows - keep)
    assert all(is_cut(cache))
    return cache


def read(cache: Sequence[Any]) -> list[Any]:
    """The same caches, their cuts made."""
    assert all(layer.cache for layer in cache if isinstance(layer, GdnCache))
    assert not any(is_cut(cache))
    return list(cache)


def is_cut(cache: Sequence[Any]) -> list[bool]:
    return [cut_of(cache[index]) is not None for index in GDN]


def sliced(windows: mx.array, states: mx.array, keep: int) -> list[Any]:
    """What a rollback made before there were cuts."""
    before = windows.shape[1] - states.shape[0]
    return [bits(windows[:, keep : keep + before]), bits(states[keep - 1 : keep])]


# --- one cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", range(1, ROWS + 1))
def test_a_cut_is_what_slicing_gives(keep: int) -> None:
    windows, states = mx.random.normal((1, 3 + ROWS, 8)), mx.random.normal((ROWS, 2, 4, 4))
    expected = sliced(windows, states, keep)
    stock: Any = GdnCache
    readers: list[Callable[[Any], Any]] = [
        lambda layer: [layer[0], layer[1]],
        lambda layer: layer.cache,
        lambda layer: layer.state[0],
        lambda layer: held_rows(layer),
        lambda layer: stock.from_state(layer.state).cache,
        lambda layer: copy.deepcopy(layer).cache,
        lambda layer: fork_cache([layer])[0].cache,
        lambda layer: take_place([layer]).held[0],
        lambda layer: take_place([layer], lasting=True).held[0],
    ]
    for reader in readers:
        layer = stock()
        put(layer, Cut(windows, states, keep))
        assert cut_of(layer) is not None
        assert [bits(array) for array in reader(layer)] == expected
    assert not layer.empty() and layer.nbytes == (3 * 8 + 2 * 4 * 4) * 4
    first = layer.cache
    assert all(one is other for one, other in zip(first, layer.cache, strict=True))


def test_what_is_put_in_takes_the_place_of_a_cut() -> None:
    windows, states = mx.ones((1, 3 + ROWS, 8)), mx.ones((ROWS, 2, 4, 4))
    window, state = mx.zeros((1, 3, 8)), mx.zeros((1, 2, 4, 4))

    def by_item(layer: Any) -> None:
        layer[0], layer[1] = window, state

    def by_list(layer: Any) -> None:
        layer.cache = [window, state]

    for change in (by_item, by_list, lambda layer: put(layer, (window, state))):
        layer = GdnCache()
        put(layer, Cut(windows, states, KEEP))
        change(layer)
        assert cut_of(layer) is None and layer[0] is window and layer[1] is state
    layer[1] = states[:1]
    put(layer, Cut(windows, states, KEEP))
    layer[0] = window
    assert layer[0] is window and bits(layer[1]) == bits(states[:1])


def test_a_cut_lets_go_of_what_was_held_before() -> None:
    layer: Any = GdnCache()
    layer[0], layer[1] = mx.zeros((1, 3, 8)), mx.zeros((1, 2, 4, 4))
    held = weakref.ref(layer[1])
    assert held() is not None
    put(layer, Cut(mx.ones((1, 3 + ROWS, 8)), mx.ones((ROWS, 2, 4, 4)), KEEP))
    assert held() is None


def test_a_stock_cache_cannot_wait() -> None:
    windows, states = mx.random.normal((1, 3 + ROWS, 8)), mx.random.normal((ROWS, 2, 4, 4))
    layer: Any = ArraysCache(2)
    put(layer, Cut(windows, states, KEEP))
    assert [bits(array) for array in layer.cache] == sliced(windows, states, KEEP)


# --- a rollback ---------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", range(1, ROWS))
def test_a_rollback_makes_no_array(keep: int) -> None:
    target = fused_target()
    cache, result = verified(target)
    assert result.tape is not None
    target.rollback(cache, result.tape, keep, ROWS - keep)
    for index in GDN:
        cut, left = cut_of(cache[index]), result.tape.layers[index].left
        assert cut is not None and (cut.keep, cut.rows) == (keep, ROWS)
        assert cut.windows is left.windows and cut.states is left.states
        assert "arrays" not in vars(cut) and "arrays" not in vars(left)
    mx.eval(cache_arrays(cache))
    assert all(is_cut(cache)), "waiting for the device reads nothing"
    assert len(cache_arrays(cache)) == 12
    expected = [
        sliced(left.windows, left.states, keep)
        for left in (result.tape.layers[index].left for index in GDN)
    ]
    assert [meaning(cache)[index] for index in GDN] == expected


@pytest.mark.parametrize(("rows", "told"), [(ROWS, KEEP), (3, 0), (1, 0)])
def test_a_pass_from_cuts_is_bitwise_the_one_from_arrays(rows: int, told: int) -> None:
    target = fused_target()
    cut, made = rolled_back(target), read(rolled_back(target))
    results: list[TargetPass] = []
    for cache, keep in ((cut, told), (made, 0)):
        result, found = told_by(target, IDS[30 : 30 + rows], cache)
        results.append(result)
        assert found == [keep] * len(GDN)
    for name in ("hidden", "taps"):
        assert bits(getattr(results[0], name)) == bits(getattr(results[1], name))
    assert meaning(cut) == meaning(made)


@pytest.mark.parametrize("change", ["read", "keep"])
def test_layers_that_disagree_are_cut_before_the_pass(change: str) -> None:
    """The last layer alone: everything before it agreed."""
    target = fused_target()
    cache, expected = rolled_back(target), rolled_back(target)
    for layers in (cache, expected):
        other = cut_of(layers[5])
        assert other is not None
        if change == "read":
            assert layers[5].cache
        else:
            layers[5].defer(Cut(other.windows, other.states, KEEP + 1))
    read(expected)
    assert is_cut(cache) == [True] * 4 + [change == "keep"]
    ids = IDS[30 : 30 + ROWS]
    assert told_by(target, ids, cache)[1] == [0] * len(GDN)
    told_by(target, ids, expected)
    assert meaning(cache) == meaning(expected)


@pytest.mark.skipif(COMPILER is None, reason="MLX compiles traced operations with g++")
def test_one_trace_serves_every_number_of_kept_rows() -> None:
    """Under MLX's own compile: nothing of a round is baked into the next."""
    traced: Any = mx.compile
    target, plain = (
        Target(
            FusedBackbone(fused_target().backbone.model, OpKernels(), traced),
            make_target("hybrid", "float32", num_hidden_layers=6).config,
        ),
        fused_target(),
    )
    caches, start = (target.make_cache(), plain.make_cache()), 0
    for keep in (5, 1, 3, 2, 4, 1):
        block = mx.array([IDS[start : start + ROWS]])
        start += keep
        hidden = []
        for one, cache in zip((target, plain), caches, strict=True):
            result = one.verify_rows(block, cache, ())
            hidden.append(result.hidden)
            one.rollback(cache, result.tape, keep, ROWS - keep)
        assert mx.allclose(hidden[0], hidden[1], rtol=1e-4, atol=1e-4)
    assert [layer.offset for layer in caches[0]] == [start] * 6


def test_many_rounds_are_those_of_the_plain_backbone() -> None:
    fused = fused_target()
    plain = Target(fused.backbone.stock, fused.config)
    mine, other = fused.make_cache(), plain.make_cache()
    start, told = 0, set[int]()
    rounds = [(4, 2), (4, 1), (4, 4), (4, 3), (6, 1), (6, 5), (2, 1), (2, 2), (2, 1), (1, 1)]
    for rows, keep in rounds:
        ids = [*IDS[start : start + rows - 1], 7]
        result, keeps = told_by(fused, ids, mine)
        expected = plain.verify_rows(mx.array([ids]), other, ())
        assert bits(result.hidden) == bits(expected.hidden)
        fused.rollback(mine, result.tape, keep, rows - keep)
        plain.rollback(other, expected.tape, keep, rows - keep)
        told |= set(keeps)
        start += keep
    assert told == {0, 1, 2, 4}, "cuts were fed"
    assert meaning(mine) == meaning(other)


def test_stock_caches_in_a_fused_pass_can_be_rolled_back() -> None:
    target = fused_target()
    made = [
        ArraysCache(2) if index in GDN else layer for index, layer in enumerate(target.make_cache())
    ]
    target.forward_with_taps(mx.array([IDS[:FED]]), made)
    result = target.verify_rows(mx.array([IDS[FED : FED + ROWS]]), made, ())
    target.rollback(made, result.tape, KEEP, ROWS - KEEP)
    assert meaning(made) == meaning(rolled_back(target))


# --- whose tape ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", ["nobody", "mine", "other", "both"])
def test_the_tape_of_another_cache_is_refused(reads: str) -> None:
    target = fused_target()
    (mine, _), (other, result) = verified(target), verified(target)
    for name, cache in (("mine", mine), ("other", other)):
        if reads in (name, "both"):
            read(cache)
    cuts = [cut_of(layer) for layer in mine]
    with pytest.raises(RollbackError, match="GDN layer 0 no longer holds"):
        target.rollback(mine, result.tape, KEEP, ROWS - KEEP)
    assert [cut_of(layer) for layer in mine] == cuts, "nobody's cut was made"
    assert whole(mine) == whole(verified(target)[0])


def test_a_block_that_was_read_can_be_rolled_back() -> None:
    target = fused_target()
    cache, result = verified(target)
    target.rollback(read(cache), result.tape, KEEP, ROWS - KEEP)
    assert all(is_cut(cache)) and meaning(cache) == meaning(rolled_back(target))


def test_a_tape_is_refused_where_the_cut_is_another() -> None:
    """Its own arrays at the offset of its block's end, and yet fewer rows of them."""
    target = fused_target()
    cache, result = verified(target)
    target.rollback(cache, result.tape, KEEP, ROWS - KEEP)
    for layer in cache:
        layer.offset += ROWS - KEEP
    with pytest.raises(RollbackError, match="GDN layer 0 no longer holds"):
        target.rollback(cache, result.tape, 1, ROWS - 1)
    assert all(is_cut(cache)) and {cut_of(cache[i]).keep for i in GDN} == {KEEP}  # type: ignore[union-attr]


def test_a_bad_call_leaves_the_cuts_alone() -> None:
    target = fused_target()
    cache, result = verified(target)
    cuts = [cut_of(layer) for layer in cache]
    for keep, drop in ((0, ROWS), (KEEP, 1), (KEEP, -1)):
        with pytest.raises(RollbackError):
            target.rollback(cache, result.tape, keep, drop)
    cache[5].offset -= 1
    with pytest.raises(RollbackError, match="layer 5 stands at"):
        target.rollback(cache, result.tape, KEEP, ROWS - KEEP)
    cache[5].offset += 1
    assert [cut_of(layer) for layer in cache] == cuts
    target.rollback(cache, result.tape, KEEP, ROWS - KEEP)
    assert meaning(cache) == meaning(rolled_back(target))


# --- who else holds caches ----------------------------------------------------------------------


def test_copies_of_a_cut_go_their_own_ways() -> None:
    target = fused_target()
    cache = rolled_back(target)
    before = meaning(rolled_back(target))
    for twin in (copy.deepcopy(cache), fork_cache(cache)):
        assert meaning(twin) == before
        result = target.verify_rows(mx.array([IDS[30:34]]), twin, ())
        target.rollback(twin, result.tape, 1, 3)
        assert meaning(twin) != before
    assert meaning(cache) == before


def test_a_place_comes_back_to_a_cut() -> None:
    target = fused_target()
    before = meaning(rolled_back(target))
    for lasting in (False, True):
        cache = rolled_back(target)
        place = take_place(cache, lasting=lasting)
        assert place.position == FED + KEEP
        result = target.verify_rows(mx.array([IDS[30 : 30 + ROWS]]), cache, ())
        target.rollback(cache, result.tape, 1, ROWS - 1)
        come_back(cache, place)
        assert meaning(cache) == before


def test_a_queued_row_behind_a_cut_is_taken_back() -> None:
    target = fused_target()
    cache = rolled_back(target)
    ahead = Lookahead(target, cache)
    assert ahead.can_undo
    ahead.queue(mx.array([3]))
    assert cache[0].offset == FED + KEEP + 1
    ahead.drop()
    assert meaning(cache) == meaning(rolled_back(target))
