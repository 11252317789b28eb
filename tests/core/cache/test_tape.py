"""Tape and rollback: replay equals feeding the kept rows alone, and no bad call changes a bit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as stock_caches

from dflash_suite.core.cache.kinds import validate_absolute_boundary
from dflash_suite.core.cache.layer_caches import offset_of
from dflash_suite.core.cache.recurrent import GdnCache
from dflash_suite.core.cache.tape import Tape, replay_tape
from dflash_suite.core.errors import CacheError, RollbackError, UnsupportedCache
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.target import gated_delta as gdn
from dflash_suite.core.target.target import Target
from tests.kit.snapshots import assert_as_fed_alone, fed_alone, meaning, recurrent_layers, whole
from tests.kit.tiny import CountingBackbone, Kind, Precision, make_target, prompt

KVCache: Any = stock_caches.KVCache
PROMPT_TOKENS = 9
ROWS = 4


@functools.cache
def tiny_target(kind: Kind, precision: Precision = "float32") -> Target:
    return make_target(kind, precision)


@dataclasses.dataclass
class Block:
    """A cache with a prompt and one verified block in it, and the block's tape."""

    target: Target
    cache: list[Any]
    tape: Tape
    ids: list[int]

    def refused(self, call: Callable[[], None], message: str) -> None:
        """`call` raises RollbackError with `message` in it, and not a bit of the cache moves."""
        before = whole(self.cache)
        held = [id(a) for layer in recurrent_layers(self.cache) for a in layer.cache]
        with pytest.raises(RollbackError) as caught:
            call()
        assert message in str(caught.value)
        assert whole(self.cache) == before
        assert [id(a) for layer in recurrent_layers(self.cache) for a in layer.cache] == held

    def replay(self, n_accepted: Any, kv_rollback: Any, tape: Tape | None = None) -> None:
        self.target.replay_tape_rollback(self.cache, tape or self.tape, n_accepted, kv_rollback)


def feed(target: Target, cache: list[Any], ids: list[int]) -> None:
    if ids:
        target.forward_with_taps(mx.array([ids]), cache)


def verified_block(
    target: Target, rows: int = ROWS, prompt_tokens: int = PROMPT_TOKENS, seed: int = 1
) -> Block:
    vocab = target.config.vocab_size
    ids = prompt(prompt_tokens + rows, seed, vocab)
    cache = target.make_cache()
    feed(target, cache, ids[: prompt_tokens - 1])
    feed(target, cache, ids[prompt_tokens - 1 : prompt_tokens])
    result = target.forward_with_taps_tape(mx.array([ids[prompt_tokens:]]), cache)
    assert result.tape is not None
    return Block(target, cache, result.tape, ids)


@pytest.fixture
def block() -> Block:
    return verified_block(tiny_target("hybrid"))


# --- replay -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 5, 8])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_replaying_n_rows_equals_n_rows_one_at_a_time(precision: Precision, rows: int) -> None:
    """R28, R29: bitwise, for every n, in every precision; the rest of the answer goes on as if
    the dropped rows had never been."""
    target = tiny_target("hybrid", precision)
    for keep in range(1, rows + 1):
        state = verified_block(target, rows)
        state.replay(keep, rows - keep)
        kept = state.ids[: PROMPT_TOKENS + keep]
        assert_as_fed_alone(state.cache, target.backbone.model, kept, PROMPT_TOKENS)


@pytest.mark.parametrize("prompt_tokens", [1, 2, 3])
def test_replay_while_the_convolution_window_is_still_filling(prompt_tokens: int) -> None:
    target = tiny_target("hybrid")
    for keep in range(1, ROWS + 1):
        state = verified_block(target, ROWS, prompt_tokens)
        state.replay(keep, ROWS - keep)
        kept = state.ids[: prompt_tokens + keep]
        assert_as_fed_alone(state.cache, target.backbone.model, kept, prompt_tokens)


def test_replay_of_a_block_that_is_the_whole_sequence() -> None:
    """No state before the block: the recurrence starts from zeros again."""
    target = tiny_target("hybrid")
    ids = prompt(5)
    for keep in range(1, 6):
        cache = target.make_cache()
        result = target.forward_with_taps_tape(mx.array([ids]), cache)
        assert result.tape is not None and result.tape.offset_init == 0
        assert result.tape.layers[0] is not None and result.tape.layers[0].state_in is None
        target.replay_tape_rollback(cache, result.tape, keep, 5 - keep)
        assert_as_fed_alone(cache, target.backbone.model, ids[:keep], 1)


def test_replay_on_the_bundled_target(bundled_target: LoadedTarget) -> None:
    target = bundled_target.target
    for keep in (1, 2, 4):
        state = verified_block(target, 4)
        state.replay(keep, 4 - keep)
        kept = state.ids[: PROMPT_TOKENS + keep]
        assert_as_fed_alone(state.cache, target.backbone.model, kept, PROMPT_TOKENS)


def test_replay_of_stock_recurrent_caches() -> None:
    """mlx-lm's own cache list works too: its recurrent caches cannot say where they stand."""
    target = tiny_target("hybrid")
    ids = prompt(PROMPT_TOKENS + ROWS)
    cache = fed_alone(target.backbone.model, ids[:PROMPT_TOKENS], PROMPT_TOKENS)
    assert [offset_of(layer) for layer in cache] == [None, None, None, PROMPT_TOKENS]
    tape = target.forward_with_taps_tape(mx.array([ids[PROMPT_TOKENS:]]), cache).tape
    assert tape is not None and tape.offset_init == PROMPT_TOKENS
    target.replay_tape_rollback(cache, tape, 2, 2)
    expected = fed_alone(target.backbone.model, ids[: PROMPT_TOKENS + 2], PROMPT_TOKENS)
    assert meaning(cache) == meaning(expected)


def test_several_blocks_in_a_row() -> None:
    target = tiny_target("hybrid")
    ids = prompt(60, seed=3)
    cache = target.make_cache()
    feed(target, cache, ids[:5])
    kept = ids[:5]
    for number, (rows, keep) in enumerate([(4, 1), (6, 5), (3, 3), (8, 2), (2, 1), (5, 5)]):
        block_ids = ids[10 + number : 10 + number + rows]
        tape = target.forward_with_taps_tape(mx.array([block_ids]), cache).tape
        assert tape is not None
        target.replay_tape_rollback(cache, tape, keep, rows - keep)
        kept += block_ids[:keep]
        validate_absolute_boundary(cache, len(kept))
    # The prompt was fed whole here: one pass over its five tokens.
    assert_as_fed_alone(cache, target.backbone.model, kept, 6)


def counted_recurrences(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every call of the recurrence from here on."""
    rows: list[int] = []
    real: Any = vars(gdn)["gated_delta_update"]

    def recorded(q: mx.array, *rest: Any, **named: Any) -> Any:
        rows.append(int(q.shape[1]))
        return real(q, *rest, **named)

    monkeypatch.setattr(gdn, "gated_delta_update", recorded)
    return rows


def test_rollback_runs_the_recurrence_over_the_kept_rows_only(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = counted_recurrences(monkeypatch)
    block.replay(3, 1)
    assert rows == [3, 3, 3], "one call for each of the three GDN layers"


def test_full_acceptance_replays_nothing(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = counted_recurrences(monkeypatch)
    before = whole(block.cache)
    block.replay(ROWS, 0)
    assert rows == [] and whole(block.cache) == before
    block.target.rollback(block.cache, block.tape, ROWS, 0)
    block.target.rollback(block.cache, None, ROWS, 0)
    assert rows == [] and whole(block.cache) == before


def test_a_rollback_is_no_forward(block: Block) -> None:
    counting = CountingBackbone(block.target.backbone)
    target = Target(counting, block.target.config)
    target.rollback(block.cache, block.tape, 1, ROWS - 1)
    assert counting.rows == [] and counting.embedded == [] and counting.head_rows == []


def test_the_tape_holds_what_was_fed(block: Block) -> None:
    assert block.tape.rows == ROWS and block.tape.offset_init == PROMPT_TOKENS
    assert [layer is not None for layer in block.tape.layers] == [True, True, True, False]
    for index, record in enumerate(block.tape.layers[:3]):
        assert record is not None and record.rows == ROWS
        assert record.fed.q.shape == record.fed.k.shape == (1, ROWS, 2, 16)
        assert record.fed.v.shape == (1, ROWS, 4, 16)
        assert record.fed.a.shape == record.fed.b.shape == (1, ROWS, 4)
        assert record.conv_input.shape == (1, 3 + ROWS, 128)
        assert record.state_out is block.cache[index][1]
        assert record.state_out.dtype == mx.float32


def test_no_tape_where_none_was_asked_for() -> None:
    target = tiny_target("hybrid")
    cache = target.make_cache()
    assert target.forward_with_taps(mx.array([[1, 2, 3]]), cache).tape is None
    assert target.verify_rows(mx.array([[4]]), cache, ()).tape is None, "one row is never undone"
    assert target.verify_rows(mx.array([[5, 6]]), cache, ()).tape is not None


# --- bad calls (R27): a message, and nothing changed --------------------------------------------

COUNTS = [
    (0, 4, "tape rollback requires a positive committed prefix, got 0"),
    (-1, 5, "tape rollback requires a positive committed prefix, got -1"),
    (5, -1, "tape rollback count must be non-negative, got -1"),
    (2.0, 2, "tape committed prefix must be a whole number, got 2.0"),
    (True, 3, "tape committed prefix must be a whole number, got True"),
    ("2", 2, "tape committed prefix must be a whole number, got '2'"),
    (None, 4, "tape committed prefix must be a whole number, got None"),
    (2, 2.0, "tape rollback count must be a whole number, got 2.0"),
    (4, False, "tape rollback count must be a whole number, got False"),
    (2, None, "tape rollback count must be a whole number, got None"),
]


@pytest.mark.parametrize(("n_accepted", "kv_rollback", "message"), COUNTS)
def test_bad_counts(block: Block, n_accepted: Any, kv_rollback: Any, message: str) -> None:
    block.refused(lambda: block.replay(n_accepted, kv_rollback), message)
    block.refused(
        lambda: block.target.rollback(block.cache, block.tape, n_accepted, kv_rollback), message
    )


@pytest.mark.parametrize(("n_accepted", "kv_rollback", "message"), COUNTS)
def test_bad_counts_on_a_kv_cache(n_accepted: Any, kv_rollback: Any, message: str) -> None:
    target = tiny_target("dense")
    cache = target.make_cache()
    feed(target, cache, prompt(8))
    before = whole(cache)
    with pytest.raises(RollbackError) as caught:
        target.rollback(cache, None, n_accepted, kv_rollback)
    assert message in str(caught.value) and whole(cache) == before


@pytest.mark.parametrize(("n_accepted", "kv_rollback"), [(2, 1), (2, 3), (4, 1), (1, 0), (9, 9)])
def test_counts_that_do_not_make_the_block(block: Block, n_accepted: int, kv_rollback: int) -> None:
    total = n_accepted + kv_rollback
    block.refused(
        lambda: block.replay(n_accepted, kv_rollback),
        f"tape holds {ROWS} rows, but {n_accepted} accepted + {kv_rollback} rolled back make "
        f"{total}",
    )


def test_layer_mismatch_of_the_tape(block: Block) -> None:
    short = dataclasses.replace(block.tape, layers=block.tape.layers[:3])
    message = "tape transaction layer mismatch: model=4 cache=4 tapes=3"
    block.refused(lambda: block.replay(2, 2, short), message)
    long = dataclasses.replace(block.tape, layers=(*block.tape.layers, None))
    block.refused(lambda: block.replay(2, 2, long), "model=4 cache=4 tapes=5")


@pytest.mark.parametrize("length", [3, 5])
def test_layer_mismatch_of_the_cache(block: Block, length: int) -> None:
    """B30: a list one entry short or long; zip would drop a decoder layer in silence."""
    cut = (block.cache + [KVCache()])[:length]
    block.refused(
        lambda: block.target.replay_tape_rollback(cut, block.tape, 2, 2),
        f"tape transaction layer mismatch: model=4 cache={length} tapes=4",
    )


def test_a_missing_gdn_tape(block: Block) -> None:
    for index in range(3):
        layers = list(block.tape.layers)
        layers[index] = None
        tape = dataclasses.replace(block.tape, layers=tuple(layers))
        message = f"GDN layer {index} is missing its rollback tape"
        block.refused(lambda tape=tape: block.replay(2, 2, tape), message)  # type: ignore[misc]


def test_a_tape_on_an_attention_layer(block: Block) -> None:
    tape = dataclasses.replace(block.tape, layers=(*block.tape.layers[:3], block.tape.layers[0]))
    block.refused(lambda: block.replay(2, 2, tape), "attention layer 3 has a rollback tape")


def test_a_layers_tape_with_other_rows(block: Block) -> None:
    record = block.tape.layers[1]
    assert record is not None
    shorter = dataclasses.replace(record, fed=record.fed.part(0, 3))
    layers = (block.tape.layers[0], shorter, *block.tape.layers[2:])
    tape = dataclasses.replace(block.tape, layers=layers)
    message = "the tape of GDN layer 1 holds 3 rows, expected 4"
    block.refused(lambda: block.replay(2, 2, tape), message)


def test_a_replay_that_gives_no_state_changes_nothing(block: Block) -> None:
    """One layer of four cannot go back: none does."""
    backbone = block.target.backbone

    def forgetful(tapes: Sequence[Any], keep: int) -> list[Any]:
        return [*backbone.replay(tapes, keep)[:2], None, None]

    layers = backbone.gdn_layers()
    block.refused(
        lambda: replay_tape(layers, block.cache, block.tape, 2, 2, forgetful),
        "layer 2 cannot go back by 2 rows",
    )


def test_the_cache_has_moved_since(block: Block) -> None:
    feed(block.target, block.cache, [7])
    block.refused(
        lambda: block.replay(2, 2),
        "layer 0 stands at 14 tokens, but the tape's block ends at 13: the cache has moved since",
    )


def test_a_tape_is_good_for_one_rollback(block: Block) -> None:
    block.replay(2, 2)
    block.refused(lambda: block.replay(2, 2), "layer 0 stands at 11 tokens")
    block.refused(lambda: block.replay(1, 3), "layer 0 stands at 11 tokens")


@pytest.mark.parametrize("index", range(4))
def test_one_layer_stands_elsewhere(block: Block, index: int) -> None:
    """The last layer is the dangerous one: everything before it was fine."""
    block.cache[index].offset -= 1
    block.refused(lambda: block.replay(2, 2), f"layer {index} stands at 12 tokens")


def test_the_tape_of_another_cache() -> None:
    """Same ids, same offsets, equal values, and yet another sequence's cache."""
    target = tiny_target("hybrid")
    mine, other = verified_block(target), verified_block(target)
    assert whole(mine.cache) == whole(other.cache)
    mine.refused(
        lambda: mine.replay(2, 2, other.tape),
        "GDN layer 0 no longer holds what the tape's block left there: the tape belongs to "
        "another cache or to an earlier block",
    )


def test_the_tape_of_an_earlier_block_at_the_same_offset(block: Block) -> None:
    """Rolled back by two, then two other rows: the offset is the old one again."""
    block.replay(2, 2)
    again = block.target.forward_with_taps_tape(mx.array([[3, 4]]), block.cache).tape
    assert again is not None
    assert [offset_of(layer) for layer in block.cache] == [PROMPT_TOKENS + ROWS] * 4
    block.refused(lambda: block.replay(2, 2), "GDN layer 0 no longer holds")
    block.replay(1, 1, again)
    kept = [*block.ids[: PROMPT_TOKENS + 2], 3]
    assert_as_fed_alone(block.cache, block.target.backbone.model, kept, PROMPT_TOKENS)


def test_one_recurrent_state_was_replaced(block: Block) -> None:
    block.cache[2][1] = block.cache[2][1] * 1
    block.refused(lambda: block.replay(2, 2), "GDN layer 2 no longer holds")


def test_caches_of_the_wrong_class_in_one_layer(block: Block) -> None:
    swapped = [KVCache(), *block.cache[1:]]
    block.refused(
        lambda: block.target.replay_tape_rollback(swapped, block.tape, 2, 2),
        "layer 0 needs a recurrent cache, got KVCache",
    )
    swapped = [*block.cache[:3], GdnCache()]
    block.refused(
        lambda: block.target.replay_tape_rollback(swapped, block.tape, 2, 2),
        "layer 3 needs a KV cache, got GdnCache",
    )


def test_an_attention_cache_that_cannot_say_where_it_stands(block: Block) -> None:
    class Mute:
        def update_and_fetch(self) -> None:
            """What makes a cache a KV cache."""

    mute = [*block.cache[:3], Mute()]
    block.refused(
        lambda: block.target.replay_tape_rollback(mute, block.tape, 2, 2),
        "layer 3 holds None tokens, cannot drop 2",
    )


def test_a_hybrid_rollback_without_a_tape(block: Block) -> None:
    block.refused(
        lambda: block.target.rollback(block.cache, None, 2, 2),
        "a Hybrid cache is rolled back by its block's tape; got none",
    )


def test_a_bad_call_spoils_nothing_for_the_good_one(block: Block) -> None:
    block.refused(lambda: block.replay(0, 4), "positive committed prefix")
    block.refused(lambda: block.replay(2, 1), "tape holds 4 rows")
    block.replay(3, 1)
    kept = block.ids[: PROMPT_TOKENS + 3]
    assert_as_fed_alone(block.cache, block.target.backbone.model, kept, PROMPT_TOKENS)


# --- KV caches are trimmed ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "llama"])
def test_trimming_equals_feeding_the_kept_rows_alone(kind: Kind) -> None:
    target = tiny_target(kind)
    ids = prompt(PROMPT_TOKENS + ROWS)
    for keep in range(1, ROWS + 1):
        cache = target.make_cache()
        feed(target, cache, ids[:PROMPT_TOKENS])
        result = target.verify_rows(mx.array([ids[PROMPT_TOKENS:]]), cache, ())
        assert result.tape is None
        target.rollback(cache, result.tape, keep, ROWS - keep)
        kept = ids[: PROMPT_TOKENS + keep]
        assert_as_fed_alone(cache, target.backbone.model, kept, PROMPT_TOKENS)


def test_a_kv_cache_that_holds_too_little() -> None:
    target = tiny_target("dense")
    cache = target.make_cache()
    feed(target, cache, [1, 2, 3])
    before = whole(cache)
    with pytest.raises(RollbackError, match=r"layer 0 \(KVCache, 3 tokens\) cannot drop 2"):
        target.rollback(cache, None, 2, 2)
    assert whole(cache) == before


@pytest.mark.parametrize("index", range(4))
def test_no_kv_layer_is_trimmed_where_one_cannot_be(index: int) -> None:
    target = tiny_target("dense")
    cache = target.make_cache()
    feed(target, cache, [1, 2, 3, 4, 5])

    class Stubborn(stock_caches.KVCache):
        def is_trimmable(self) -> bool:
            return False

    stubborn: Any = Stubborn
    cache[index] = stubborn.from_state(cache[index].state)
    before = whole(cache)
    with pytest.raises(RollbackError, match=rf"layer {index} \(Stubborn, 5 tokens\) cannot drop"):
        target.rollback(cache, None, 1, 2)
    assert whole(cache) == before


def test_a_kv_target_has_no_tape() -> None:
    target, hybrid = tiny_target("dense"), verified_block(tiny_target("hybrid"))
    cache = target.make_cache()
    feed(target, cache, [1, 2, 3])
    before = whole(cache)
    message = " requires a Hybrid target and a Hybrid cache, got qwen3"
    with pytest.raises(UnsupportedCache, match="forward_with_taps_tape" + message):
        target.forward_with_taps_tape(mx.array([[1]]), cache)
    with pytest.raises(UnsupportedCache, match="replay_tape_rollback" + message):
        target.replay_tape_rollback(cache, hybrid.tape, 2, 2)
    assert whole(cache) == before


# --- one boundary for all layers (R30) ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_absolute_boundary(kind: Kind) -> None:
    target = tiny_target(kind)
    cache = target.make_cache()
    validate_absolute_boundary(cache, 0)
    feed(target, cache, [1, 2, 3, 4])
    validate_absolute_boundary(cache, 4)
    with pytest.raises(CacheError, match="layer 0 of the cache stands at 4 tokens, expected 5"):
        validate_absolute_boundary(cache, 5)
    for index in range(4):
        cache[index].offset += 1
        with pytest.raises(CacheError, match=f"layer {index} of the cache stands at 5 tokens"):
            validate_absolute_boundary(cache, 4)
        cache[index].offset -= 1
    validate_absolute_boundary(cache, 4)
