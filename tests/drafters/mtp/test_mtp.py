"""The MTP head: its forward, its context, and decoding with it on tiny random targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.errors import CacheError, OptionError
from dflash_suite.core.options import GenerateOptions, MtpHidden
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.pair import Pair
from tests.kit.naive_drafter import as_float64
from tests.kit.naive_mtp import NaiveHead
from tests.kit.snapshots import assert_as_fed_alone, bits
from tests.kit.tiny import (
    HIDDEN,
    LAYERS,
    PieceDetokenizer,
    as_ids,
    assert_varied,
    prompt,
    stock_greedy,
)
from tests.kit.tiny_mtp import MOE, head_tensors, tiny_head


def rows_of(target: Target, ids: list[int], drafter: MtpDrafter) -> TargetRows:
    """What the loop shows a drafter of these tokens, in one pass from position 0."""
    taps = drafter.tap_ids
    result = target.forward_with_taps(mx.array([ids]), target.make_cache(), taps)
    return TargetRows(0, mx.array(ids), result.taps, result.hidden)


def show(drafter: MtpDrafter, rows: TargetRows, sizes: list[int]) -> None:
    """Observe rows in pieces."""
    drafter.reset(rows.position)
    for size in sizes:
        drafter.observe(rows.keep(size))
        rows = rows.from_row(size)


@pytest.mark.parametrize("hidden", ["post", "pre"])
@pytest.mark.parametrize("kind", ["dense", "numbered"])
def test_drafts_equal_the_naive_forward(tmp_path: Path, kind: Any, hidden: MtpHidden) -> None:
    tensors = head_tensors(kind)
    changes = MOE if kind == "numbered" else {}
    target, drafter = tiny_head(tmp_path, tensors, hidden, **changes)
    text = target.backbone.text
    naive = NaiveHead(tensors, text.model.embed_tokens.weight, text.lm_head.weight)
    distinct = set()
    for seed in range(4):
        ids = prompt(12, seed)
        rows = rows_of(target, ids, drafter)
        show(drafter, rows, [len(ids)])
        drafts = as_ids(drafter.draft(mx.array([7 + seed]), 4))
        source = rows.hidden if hidden == "post" else rows.taps
        assert source is not None
        expected = naive.chain(as_float64(source[0]), [*ids[1:], 7 + seed], 4, pre=hidden == "pre")
        assert drafts == expected
        distinct.update(drafts)
    assert len(distinct) > 8  # else almost any head would pass


def test_both_hidden_variants_draft_differently(tmp_path: Path) -> None:
    ids = prompt(12)
    drafts = []
    variants: tuple[MtpHidden, ...] = ("post", "pre")
    for variant in variants:
        target, drafter = tiny_head(tmp_path / variant, head_tensors(), variant)
        show(drafter, rows_of(target, ids, drafter), [12])
        drafts.append(as_ids(drafter.draft(mx.array([3]), 6)))
        assert drafter.tap_ids == (() if variant == "post" else (LAYERS - 1,))
    assert drafts[0] != drafts[1]


def test_context_is_the_same_however_the_rows_come(tmp_path: Path) -> None:
    """In one piece, in pieces, and with drafts in between that are rejected or kept."""
    target, drafter = tiny_head(tmp_path)
    ids = prompt(20)
    rows = rows_of(target, ids, drafter)
    contexts = []
    for sizes in ([20], [1] * 20, [3, 1, 7, 9]):
        show(drafter, rows, sizes)
        contexts.append(context_of(drafter))
        show(drafter, rows.keep(8), [8])
        rest = rows.from_row(8)
        while rest.token_ids.shape[0]:
            # A draft feeds the anchor's pair, and rows of its own making that must not stay.
            drafter.draft(rest.token_ids[:1], 4)
            size = min(len(sizes), 3, int(rest.token_ids.shape[0]))
            drafter.observe(rest.keep(size))
            rest = rest.from_row(size)
        contexts.append(context_of(drafter))
    assert all(context == contexts[0] for context in contexts)
    assert contexts[0][0] == 19  # 20 rows make 19 pairs


def context_of(drafter: MtpDrafter) -> tuple[Any, ...]:
    cache = drafter._cache
    keys, values = (array[:, :, : cache.rows] for array in cache.arrays())
    assert drafter._pending is not None
    return cache.rows, cache.offset, bits(keys), bits(values), bits(drafter._pending)


def test_drafting_twice_is_drafting_once(tmp_path: Path) -> None:
    target, drafter = tiny_head(tmp_path)
    show(drafter, rows_of(target, prompt(9), drafter), [9])
    first = as_ids(drafter.draft(mx.array([5]), 3))
    assert as_ids(drafter.draft(mx.array([5]), 3)) == first


def test_rows_out_of_order_and_foreign_marks_are_refused(tmp_path: Path) -> None:
    """A typed error, with or without `python -O`, and nothing changed."""
    target, drafter = tiny_head(tmp_path)
    rows = rows_of(target, prompt(6), drafter)
    show(drafter, rows, [6])
    before = context_of(drafter)
    with pytest.raises(CacheError, match="mtp context diverged: it stands at 6, got rows from 9"):
        drafter.observe(TargetRows(9, rows.token_ids, None, rows.hidden))
    for mark in (6, replace(drafter.mark(), rows=99)):
        with pytest.raises(CacheError, match="not a mark of this context, which holds 5 rows"):
            drafter.return_to(mark)
    drafter.hidden = "pre"
    with pytest.raises(CacheError, match="got no taps"):
        drafter.observe(TargetRows(6, rows.token_ids, None, rows.hidden))
    assert context_of(drafter) == before


def test_a_gap_keeps_true_positions(tmp_path: Path) -> None:
    """After a reset at P the next pair is turned at P - 1, as without the gap."""
    target, drafter = tiny_head(tmp_path)
    drafter.reset(40)
    assert drafter.position == 40
    drafts = as_ids(drafter.draft(mx.array([9]), 3))
    assert len(drafts) == 3 and drafter._cache.offset == 40
    rows = rows_of(target, prompt(6), drafter)
    drafter.observe(TargetRows(40, rows.token_ids, None, rows.hidden))
    assert drafter.position == 46 and drafter._cache.offset == 45
    naive = NaiveHead(
        head_tensors(),
        target.backbone.text.model.embed_tokens.weight,
        target.backbone.text.lm_head.weight,
    )
    hidden = as_float64(mx.concatenate([mx.zeros((1, HIDDEN)), rows.hidden[0]]))
    ids = [*as_ids(rows.token_ids), 11]
    # The pair (zeros, id at 40) sits at 39; the anchor of the gap's own draft was another token,
    # whose row the observed rows must not have kept.
    drafter.reset(40)
    drafter.observe(TargetRows(40, rows.token_ids, None, rows.hidden))
    assert as_ids(drafter.draft(mx.array([11]), 4)) == naive.chain(hidden, ids, 4, start=39)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", ["dense", "fused"])
@pytest.mark.parametrize("draft_tokens", [1, 3, 6])
def test_a_random_head_changes_no_byte(tmp_path: Path, kind: Any, draft_tokens: int) -> None:
    changes = MOE if kind == "fused" else {}
    target, drafter = tiny_head(tmp_path, head_tensors(kind), **changes)
    ids, model = prompt(11), target.backbone.model
    plain = stock_greedy(model, ids, 60)
    assert_varied(plain)
    generation = Generation(
        target,
        ids,
        PieceDetokenizer(),
        drafter=drafter,
        options=GenerateOptions(max_tokens=60, draft_tokens=draft_tokens, gate=False),
    )
    for _ in generation:
        assert generation.contexts.sessions["mtp"].position == generation.position
    assert drafter.position == 0, "a generation has a context of its own"
    stats = generation.stats
    assert generation.emitter.token_ids == plain
    assert stats.rounds > 0 and stats.accepted < stats.drafted and stats.drafter_resets == 0
    assert max(len(stats.trials), 1) == draft_tokens
    assert_as_fed_alone(generation.cache, model, [*ids, *plain[:-1]], len(ids))


def test_a_broken_head_changes_no_byte(tmp_path: Path) -> None:
    """A head that only says NaN is never accepted and never in the way; from a file it is refused,
    so it gets its values here."""
    target, drafter = tiny_head(tmp_path)
    drafter.model.layers[0].self_attn.o_proj.weight = mx.full((64, 64), mx.nan)
    ids = prompt(11)
    options = GenerateOptions(max_tokens=30, gate=False)
    generation = Generation(target, ids, PieceDetokenizer(), drafter=drafter, options=options)
    for _ in generation:
        pass
    assert generation.emitter.token_ids == stock_greedy(target.backbone.model, ids, 30)
    assert generation.stats.rounds > 20 and generation.stats.accepted < generation.stats.rounds


def test_the_block_is_draft_tokens_and_ignores_block_size(tmp_path: Path) -> None:
    _, drafter = tiny_head(tmp_path)
    for count in range(1, 7):
        block = drafter.block(GenerateOptions(draft_tokens=count, block_size=64))
        assert block.effective == count + 1 and block.draft_tokens == count
    assert drafter.block(GenerateOptions()).draft_tokens == 3
    for count in (0, 7, -1):
        with pytest.raises(OptionError, match=r"1\.\.6"):
            GenerateOptions(draft_tokens=count)


def test_recorded_accept_lengths(
    bundled_pair: Pair, bundled_mtp: MtpDrafter, bundled_prompts: list[dict[str, Any]]
) -> None:
    """k = 3 on the bundled head: every round as the reference run recorded it."""
    lengths: set[int] = set()
    for record in [bundled_prompts[0], *bundled_prompts[5:8]]:
        generation = Generation(
            bundled_pair.target,
            record["prompt_ids"],
            bundled_pair.tokenizer.detokenizer,
            drafter=bundled_mtp,
            options=GenerateOptions(max_tokens=200, draft_tokens=3, gate=False),
        )
        for _ in generation:
            pass
        assert generation.emitter.token_ids == record["plain_ids"]
        assert generation.stats.accept_lengths == record["mtp3"]["accept_lengths"]
        lengths.update(generation.stats.accept_lengths)
    assert lengths == {1, 2, 3, 4}
