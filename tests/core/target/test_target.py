"""A target's forward: taps are layer outputs, and every wrong pairing is a typed error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as stock_caches
from mlx_lm.models.base import create_attention_mask, create_ssm_mask

from dflash_suite.core.cache.tape import Tape
from dflash_suite.core.errors import CacheError, DflashError, ExternalMask, UnsupportedCache
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.target.target import Target
from tests.kit.snapshots import bits, meaning, whole
from tests.kit.tiny import HIDDEN, LAYERS, VOCAB, Kind, Precision, make_target, prompt

stock: Any = stock_caches
attention_mask: Any = create_attention_mask
recurrent_mask: Any = create_ssm_mask
IDS = prompt(14)
KINDS: tuple[Kind, ...] = ("hybrid", "dense", "llama")


@functools.cache
def tiny_target(kind: Kind, precision: Precision = "float32") -> Target:
    return make_target(kind, precision)


def hooked(model: Any, ids: list[int], cache: list[Any]) -> list[mx.array]:
    """Embedding, then the output of each stock decoder layer, by mlx-lm's own layer calls."""
    body = getattr(model, "language_model", model).model
    hidden = body.embed_tokens(mx.array([ids]))
    outputs = [hidden]
    for layer, entry in zip(model.layers, cache, strict=True):
        recurrent = isinstance(entry, stock.ArraysCache)
        mask = (recurrent_mask if recurrent else attention_mask)(hidden, entry)
        outputs.append(layer(outputs[-1], mask, entry))
    return outputs


# --- taps ------------------------------------------------------------------------------


@pytest.mark.parametrize("tap_ids", [(0,), (1, 3), (3,), (0, 1, 2, 3), (2, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tap_is_the_output_of_its_layer(kind: Kind, tap_ids: tuple[int, ...]) -> None:
    """Also the last layer's output, before the final norm. Over a prompt, a block on a filled
    cache, and one row; in the order asked for."""
    target = tiny_target(kind)
    model = target.backbone.model
    own, theirs = target.make_cache(), stock.make_prompt_cache(model)
    for chunk in (IDS[:9], IDS[9:13], IDS[13:]):
        result = target.forward_with_taps(mx.array([chunk]), own, tap_ids)
        outputs = hooked(model, chunk, theirs)
        assert result.taps is not None
        assert result.taps.shape == (1, len(chunk), len(tap_ids) * HIDDEN)
        parts = mx.split(result.taps, len(tap_ids), axis=-1)
        for tap, part in zip(tap_ids, parts, strict=True):
            assert bits(part) == bits(outputs[tap + 1])
            assert bits(part) != bits(outputs[tap]), "an off-by-one layer must differ"
    assert meaning(own) == meaning(theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_tap_is_before_the_final_norm(kind: Kind) -> None:
    target = tiny_target(kind)
    result = target.forward_with_taps(mx.array([IDS]), target.make_cache(), (LAYERS - 1,))
    assert result.taps is not None
    assert bits(result.taps) != bits(result.hidden)
    assert bits(target.backbone.body.norm(result.taps)) == bits(result.hidden)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_taps_with_a_tape_are_the_same_taps(precision: Precision) -> None:
    target = tiny_target("hybrid", precision)
    one, two = target.make_cache(), target.make_cache()
    plain = target.forward_with_taps(mx.array([IDS]), one, (1, 3))
    taped = target.forward_with_taps_tape(mx.array([IDS]), two, (1, 3))
    assert plain.tape is None and taped.tape is not None
    assert plain.taps is not None and taped.taps is not None
    assert bits(plain.taps) == bits(taped.taps) and bits(plain.hidden) == bits(taped.hidden)
    assert whole(one) == whole(two)


def test_nothing_tapped_is_none() -> None:
    target = tiny_target("hybrid")
    assert target.forward_with_taps(mx.array([IDS]), target.make_cache()).taps is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_bitwise_its_rows_one_at_a_time(kind: Kind, precision: Precision) -> None:
    """On the CPU: the ground that identity stands on."""
    if mx.default_device() != mx.cpu:
        pytest.skip("other devices promise no such thing")
    target = tiny_target(kind, precision)
    together, singly = target.make_cache(), target.make_cache()
    for cache in (together, singly):
        target.forward_with_taps(mx.array([IDS[:6]]), cache)
    block = target.forward_with_taps(mx.array([IDS[6:]]), together, (0, 3))
    rows = [target.forward_with_taps(mx.array([[i]]), singly, (0, 3)) for i in IDS[6:]]
    assert bits(block.hidden) == bits(mx.concatenate([row.hidden for row in rows], axis=1))
    logits = target.logits_from_hidden(block.hidden)
    assert logits.shape == (1, len(IDS) - 6, VOCAB)
    for index, row in enumerate(rows):
        assert bits(logits[:, index : index + 1]) == bits(target.logits_from_hidden(row.hidden))
    assert meaning(together) == meaning(singly)


def test_both_ends_are_the_targets_own(bundled_target: LoadedTarget) -> None:
    """For untied, quantized and tied targets."""
    quantized: Precision = "4bit"
    for target in (
        tiny_target("hybrid"),
        tiny_target("hybrid", quantized),
        tiny_target("dense", quantized),
        make_target("dense", "4bit", tie_word_embeddings=True),
        bundled_target.target,
    ):
        model = target.backbone.model
        text = getattr(model, "language_model", model)
        ids = mx.array([IDS])
        assert bits(target.embed_token_ids(ids)) == bits(text.model.embed_tokens(ids))
        hidden = target.forward_with_taps(ids, target.make_cache()).hidden
        stock_logits = model(ids, cache=stock.make_prompt_cache(model))
        assert bits(target.logits_from_hidden(hidden)) == bits(stock_logits)


def test_compute_dtype_is_that_of_the_residual() -> None:
    assert tiny_target("hybrid").compute_dtype == mx.float32
    assert tiny_target("hybrid", "bfloat16").compute_dtype == mx.bfloat16
    assert tiny_target("hybrid", "4bit").compute_dtype == mx.float32


# --- every target with every cache --------------------------------------------------------


def filled(kind: Kind) -> list[Any]:
    target = tiny_target(kind)
    cache = target.make_cache()
    target.forward_with_taps(mx.array([IDS]), cache)
    return cache


def stock_filled(kind: Kind) -> list[Any]:
    model = tiny_target(kind).backbone.model
    cache: list[Any] = stock.make_prompt_cache(model)
    model(mx.array([IDS]), cache=cache)
    return cache


def padded(kind: Kind) -> list[Any]:
    cache = filled(kind)
    cache[1].left_padding = mx.array([2])
    return cache


def ragged(kind: Kind) -> list[Any]:
    cache = filled(kind)
    cache[2].lengths = mx.array([3])
    return cache


def swapped() -> list[Any]:
    cache = filled("hybrid")
    cache[0], cache[3] = cache[3], cache[0]
    return cache


MADE: dict[str, Callable[[], list[Any]]] = {
    "Hybrid": lambda: filled("hybrid"),
    "stock Hybrid": lambda: stock_filled("hybrid"),
    "KV": lambda: filled("dense"),
    "empty": list,
    "unknown": lambda: [object()] * LAYERS,
    "Hybrid, one short": lambda: filled("hybrid")[1:],
    "Hybrid, one long": lambda: [*filled("hybrid"), stock.KVCache()],
    "KV, one short": lambda: filled("dense")[:-1],
    "KV, one long": lambda: [*filled("dense"), stock.KVCache()],
    "padded": lambda: padded("hybrid"),
    "ragged": lambda: ragged("hybrid"),
    "swapped": swapped,
}
WITH_HYBRID = {
    "Hybrid": None,
    "stock Hybrid": None,
    "KV": "expected Hybrid cache, got KV",
    "empty": "expected Hybrid cache, got empty",
    "unknown": "expected Hybrid cache, got unknown",
    "Hybrid, one short": "the target has 4 layers and the cache has 3",
    "Hybrid, one long": "the target has 4 layers and the cache has 5",
    "KV, one short": "expected Hybrid cache, got KV",
    "KV, one long": "expected Hybrid cache, got KV",
    "padded": "layer 1 has a padded batch cache",
    "ragged": "layer 2 has a padded batch cache",
    "swapped": "layer 0 needs a recurrent cache, got KVCache",
}
WITH_KV = {
    "Hybrid": "expected KV cache, got Hybrid",
    "stock Hybrid": "expected KV cache, got Hybrid",
    "KV": None,
    "empty": "expected KV cache, got empty",
    "unknown": "expected KV cache, got unknown",
    "Hybrid, one short": "expected KV cache, got Hybrid",
    "Hybrid, one long": "expected KV cache, got Hybrid",
    "KV, one short": "the target has 4 layers and the cache has 3",
    "KV, one long": "the target has 4 layers and the cache has 5",
    "padded": "expected KV cache, got Hybrid",
    "ragged": "expected KV cache, got Hybrid",
    "swapped": "expected KV cache, got Hybrid",
}


def snapshot(cache: list[Any]) -> list[Any]:
    return list(cache) if cache and type(cache[0]) is object else whole(cache)


def refused(cache: list[Any], message: str, call: Callable[[], object]) -> None:
    """`call` raises UnsupportedCache with `message`, and not a bit of the cache moves."""
    before = snapshot(cache)
    with pytest.raises(UnsupportedCache) as caught:
        call()
    assert message in str(caught.value)
    assert snapshot(cache) == before


@pytest.mark.parametrize("name", MADE)
def test_hybrid_target_with_every_cache(name: str) -> None:
    target, cache, message = tiny_target("hybrid"), MADE[name](), WITH_HYBRID[name]
    ids = mx.array([[5, 6]])
    if message is None:
        target.forward_with_taps(ids, cache)
        tape = target.forward_with_taps_tape(ids, cache).tape
        assert tape is not None
        target.replay_tape_rollback(cache, tape, 1, 1)
        tape = target.verify_rows(ids, cache, ()).tape
        target.rollback(cache, tape, 1, 1)
        assert cache[3].offset == len(IDS) + 4
        return
    refused(cache, message, lambda: target.forward_with_taps(ids, cache))
    refused(cache, message, lambda: target.forward_with_taps_tape(ids, cache))
    refused(cache, message, lambda: target.verify_rows(ids, cache, ()))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("kind", ["dense", "llama"])
def test_kv_target_with_every_cache(kind: Kind, name: str) -> None:
    target, cache, message = tiny_target(kind), MADE[name](), WITH_KV[name]
    ids = mx.array([[5, 6]])
    no_tape = f"requires a Hybrid target and a Hybrid cache, got {target.config.model_type}"
    refused(cache, no_tape, lambda: target.forward_with_taps_tape(ids, cache))
    tape = Tape(2, 0, (None,) * LAYERS)
    refused(cache, no_tape, lambda: target.replay_tape_rollback(cache, tape, 1, 1))
    if message is None:
        target.forward_with_taps(ids, cache)
        target.rollback(cache, None, 1, 1)
        assert [layer.offset for layer in cache] == [len(IDS) + 1] * LAYERS
        return
    refused(cache, message, lambda: target.forward_with_taps(ids, cache))
    refused(cache, message, lambda: target.verify_rows(ids, cache, ()))
    refused(cache, message, lambda: target.rollback(cache, None, 1, 1))


@pytest.mark.parametrize("name", MADE)
def test_hybrid_rollback_of_every_other_cache(name: str) -> None:
    """A tape never rolls back a cache that is not its own, whatever kind that is."""
    target = tiny_target("hybrid")
    own = filled("hybrid")
    tape = target.forward_with_taps_tape(mx.array([[5, 6]]), own).tape
    assert tape is not None
    cache = MADE[name]()
    before = snapshot(cache)
    for call in (target.replay_tape_rollback, target.rollback):
        with pytest.raises(CacheError) as caught:
            call(cache, tape, 1, 1)
        if name in ("KV", "empty", "unknown"):
            assert f"expected Hybrid cache, got {name}" in str(caught.value)
    assert snapshot(cache) == before


# --- what a forward refuses ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_external_mask_is_refused(kind: Kind) -> None:
    target, cache = tiny_target(kind), filled(kind)
    before = whole(cache)
    mask = mx.ones((2, 2 + len(IDS)), dtype=mx.bool_)
    ids = mx.array([[1, 2]])
    calls = [target.forward_with_taps]
    if kind == "hybrid":
        calls.append(target.forward_with_taps_tape)
    for call in calls:
        with pytest.raises(ExternalMask, match=f"{call.__name__} takes no external attention mask"):
            call(ids, cache, (), mask)
    assert whole(cache) == before


@pytest.mark.parametrize("taps", [(4,), (-1,), (0, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_taps_outside_the_layers(kind: Kind, taps: tuple[int, ...]) -> None:
    target, cache = tiny_target(kind), filled(kind)
    before = whole(cache)
    with pytest.raises(CacheError, match=r"outside the target's layers 0\.\.3 \(taps count from 0"):
        target.forward_with_taps(mx.array([[1, 2]]), cache, taps)
    assert whole(cache) == before


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 0), (1, 1, 3)])
def test_ids_of_another_shape(shape: tuple[int, ...]) -> None:
    target, cache = tiny_target("hybrid"), filled("hybrid")
    before = whole(cache)
    for call in (target.forward_with_taps, target.forward_with_taps_tape):
        with pytest.raises(CacheError, match=r"takes ids of shape \(1, T\)"):
            call(mx.zeros(shape, dtype=mx.int32), cache)
    assert whole(cache) == before


def test_every_refusal_is_in_the_tree() -> None:
    for error in (UnsupportedCache, ExternalMask, CacheError):
        assert issubclass(error, DflashError) and issubclass(error, CacheError)
