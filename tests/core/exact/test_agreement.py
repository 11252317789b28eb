"""Rows that depend on their own past alone agree; every planted dependence is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.cache.kinds import fork_cache
from dflash_suite.core.cache.layer_caches import held_rows
from dflash_suite.core.errors import ExactUnavailable, OptionError
from dflash_suite.core.exact import agreement
from dflash_suite.core.exact.agreement import Agreement, Text, agree, agree_with_one_row
from dflash_suite.core.target.target import Target
from tests.kit.planted import Fault, planted_target
from tests.kit.tiny import VOCAB, Kind, Precision, make_target

SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 12,
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
@pytest.mark.parametrize(
    ("kind", "changes"), [("hybrid", {}), ("dense", {}), ("llama", SLIDING)], ids=str
)
@pytest.mark.parametrize("width", [2, 5, 16])
def test_rows_agree_on_the_cpu(
    kind: Kind, changes: dict[str, Any], precision: Precision, width: int
) -> None:
    target = make_target(kind, precision, **changes)
    same_width = agree(target, width, 20, tokens=20)
    assert same_width.holds and same_width.flips == 0 and same_width.largest_difference == 0
    assert same_width.rows == 60 and same_width.equal == 60
    one_row = agree_with_one_row(target, width, 20, tokens=20)
    assert one_row.rows == 40
    if "sliding_window" not in changes:
        assert one_row.holds and one_row.smallest_margin == same_width.smallest_margin
    assert same_width.smallest_margin > 0 or precision == "bfloat16"


def test_a_ring_of_keys_is_found() -> None:
    """A sliding layer's single rows stand in a ring, and a sum in another order has other last
    bits: real, on the CPU, and no plant."""
    found = agree_with_one_row(make_target("llama", **SLIDING), 5, 20, tokens=20)
    assert not found.holds and 0 < found.largest_difference < 1e-3


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("fault", ["neighbour", "place", "keys"])
def test_rows_that_see_their_pass_are_found(kind: Kind, fault: Fault) -> None:
    found = agree(planted_target(fault, kind), 4, 20, tokens=20)
    assert not found.holds and found.equal < found.rows and found.largest_difference > 0
    assert "rows differ at width 4 and 20 tokens of context, by up to" in found.describe()


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_rows_that_follow_the_width_agree_at_one_width_alone(kind: Kind) -> None:
    target = planted_target("width", kind)
    assert agree(target, 4, 20, tokens=20).holds
    found = agree_with_one_row(target, 4, 20, tokens=20)
    assert found.equal == 0 and found.largest_difference > 0 and not found.caches


def test_one_row_passes_agree_with_themselves() -> None:
    assert agree(make_target(), 1, 9, tokens=9).holds


def test_a_context_of_several_prefill_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "PREFILL_ROWS", 16)
    assert agree(make_target(), 3, 50, tokens=12).holds


@pytest.mark.parametrize("vocab", [VOCAB, 3])
def test_no_junk_is_the_one_before_or_right(vocab: int) -> None:
    target = make_target()
    config = replace(target.config, vocab_size=vocab)
    seen: list[list[int]] = []

    class Recording(Target):
        def verify_rows(self, token_ids: mx.array, *rest: Any) -> Any:
            ids: Any = token_ids[0].tolist()
            seen.append(ids)
            return super().verify_rows(token_ids, *rest)

    text = Text(Recording(target.backbone, config), 4, 10, 12, seed=3)
    text.decode(4, [1] * 12)
    text.decode(4, [1] * 12)
    assert [rows[0] for rows in seen] == text.ids * 2
    junk = [rows[1] for rows in seen]
    assert all(left != right for left, right in zip(junk, junk[1:], strict=False))
    right = [*text.ids[1:], -1] * 2
    assert all(one != token for one, token in zip(junk, right, strict=True))
    assert vocab == 3 or len({tuple(rows[1:]) for rows in seen}) == 24


def test_a_difference_in_the_caches_alone_is_one() -> None:
    held = Agreement(4, 8, 10, 10, 0.0, 0, 1.0, caches=False)
    assert not held.holds and held.describe().startswith("the caches, and no row of logits,")


def test_nan_logits_are_equal_to_themselves_and_no_comparison() -> None:
    target = make_target()
    target.backbone.text.lm_head.weight = target.backbone.text.lm_head.weight * mx.nan
    with pytest.raises(ExactUnavailable, match="answers token 0 after each of 12 different ids"):
        agree(target, 4, 8, tokens=12)


@pytest.mark.parametrize("numbers", [(0, 8, 8), (4, 0, 8), (4, 8, 0)])
def test_counts_must_be_positive(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(OptionError, match="must be at least 1"):
        agree(make_target(), numbers[0], numbers[1], tokens=numbers[2])


@pytest.mark.parametrize(
    ("kind", "changes"), [("hybrid", {}), ("dense", {}), ("llama", SLIDING)], ids=str
)
def test_a_fork_is_apart(kind: Kind, changes: dict[str, Any]) -> None:
    target = make_target(kind, **changes)
    cache = target.make_cache()
    target.forward_with_taps(mx.array([list(range(20))]), cache)
    before = [[mx.array(rows) for rows in held_rows(layer)] for layer in cache]
    fork = fork_cache(cache)
    for token in range(4):
        target.forward_with_taps(mx.array([[token]]), fork)
    assert [layer.offset for layer in cache] == [20] * 4
    assert [layer.offset for layer in fork] == [24] * 4
    kept = [[mx.array(rows) for rows in held_rows(layer)] for layer in fork]
    mx.eval(kept)
    again = fork_cache(cache)
    target.forward_with_taps(mx.array([[7, 8, 9, 10, 11]]), again)
    for layer, rows in zip(fork, kept, strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(held_rows(layer), rows, strict=True))
    for layer, rows in zip(cache, before, strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(held_rows(layer), rows, strict=True))
