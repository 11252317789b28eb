"""The context buffer: what it keeps, how far it grows, and that chunks do not matter."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.errors import CacheError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.drafters.dflash.context import GROWTH_ROWS, ContextBuffer
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from tests.kit.tiny import PieceDetokenizer, as_ids, make_target, prompt
from tests.kit.tiny_drafter import (
    BLOCK,
    TAPS,
    Recorder,
    largest,
    make_drafter,
    observe_taps,
    random_ends,
    tap_rows,
)

HEADS, HEAD_DIM = 2, 4


def rows_from(start: int, count: int) -> tuple[mx.array, mx.array]:
    """Keys and values that tell which row they are."""
    rows = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    keys = mx.broadcast_to(rows, (1, HEADS, count, HEAD_DIM))
    return keys, -keys


def seen(keys: mx.array, values: mx.array) -> list[int]:
    """The row numbers of a view, the same in every head and element."""
    assert mx.array_equal(values, -keys)
    first = keys[0, 0, :, 0]
    assert mx.array_equal(keys, mx.broadcast_to(first[None, None, :, None], keys.shape))
    return [int(row) for row in first.tolist()]  # type: ignore[arg-type, union-attr]


def context_of(buffer: ContextBuffer) -> tuple[mx.array, mx.array]:
    """The context alone: a block of no rows behind it."""
    nothing = mx.zeros((1, buffer.heads, 0, buffer._head_dim), dtype=buffer._dtype)
    return buffer.with_block(nothing, nothing)


@pytest.mark.parametrize("window", [None, 2, 5, 40, 300])
@pytest.mark.parametrize("sizes", [[1] * 30, [3, 1, 7, 40, 1, 1], [700, 1, 5], [0, 2, 0, 300, 260]])
def test_a_buffer_is_the_tail_of_everything_appended(window: int | None, sizes: list[int]) -> None:
    buffer = ContextBuffer(HEADS, HEAD_DIM, window, mx.float32)
    total = 0
    for size in sizes:
        buffer.append(*rows_from(total, size))
        total += size
        kept = list(range(total))[-(window - 1) :] if window else list(range(total))
        assert buffer.rows == len(kept)
        assert seen(*context_of(buffer)) == kept
        # The block's rows stand behind the context and leave nothing there.
        assert seen(*buffer.with_block(*rows_from(9000, 6))) == kept + list(range(9000, 9006))
        assert seen(*buffer.with_block(*rows_from(8000, 2))) == [*kept, 8000, 8001]
        assert buffer.rows == len(kept)


def test_a_view_stays_what_it_was(tmp_path: Path) -> None:
    """Drafts are lazy: rows written later must not show in a view taken before."""
    buffer = ContextBuffer(HEADS, HEAD_DIM, 5, mx.float32)
    buffer.append(*rows_from(0, 4))
    view = buffer.with_block(*rows_from(100, 3))
    buffer.append(*rows_from(4, 2))
    buffer.with_block(*rows_from(200, 3))
    assert seen(*view) == [0, 1, 2, 3, 100, 101, 102]


def test_a_sliding_buffer_stays_small() -> None:
    """After 500 tokens, and after 5000, not a row for each of them."""
    window, block = 12, 8
    buffer = ContextBuffer(HEADS, HEAD_DIM, window, mx.float32)
    capacities = []
    for start in range(0, 5000, 4):
        buffer.append(*rows_from(start, 4))
        buffer.with_block(*rows_from(0, block))
        capacities.append(buffer.capacity)
    assert buffer.rows == window - 1
    assert max(capacities) <= window - 1 + block + GROWTH_ROWS
    assert max(capacities[:125]) == max(capacities)


def test_a_full_buffer_grows_in_steps() -> None:
    """Room for all rows, within half as much again, and few copies on the way."""
    buffer = ContextBuffer(HEADS, HEAD_DIM, None, mx.float32)
    capacities = [buffer.capacity]
    for row in range(2000):
        buffer.append(*rows_from(row, 1))
        capacities.append(buffer.capacity)
    assert buffer.rows == 2000
    assert 2000 <= buffer.capacity <= 2000 * 3 // 2 + GROWTH_ROWS
    assert len(set(capacities)) < 10


def test_the_drafters_memory_is_bounded_over_a_long_answer(tmp_path: Path) -> None:
    """Through the drafter: 500 tokens observed in rounds, a draft after each."""
    drafter = make_drafter(tmp_path)
    for step in range(100):
        observe_taps(drafter, tap_rows(5, seed=step))
        drafter.draft(mx.array([1]), BLOCK - 1)
    assert drafter.position == 500 and drafter.context_lengths == [11, 11]
    held = [int(array.shape[2]) for array in drafter.state()]
    assert len(held) == 4 and max(held) <= 11 + BLOCK + GROWTH_ROWS


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_chunks_of_any_size_leave_the_same_context(
    tmp_path: Path, kind: str, dtype: mx.Dtype
) -> None:
    """Context keys and values bit for bit, hence the same drafts."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 30}
    changes = layers if kind == "dflash" else {"sliding_window": 30}
    taps = tap_rows(75)
    whole: DFlashDrafter | None = None
    for chunk in (None, 1, 7, 32, 74):
        drafter = make_drafter(
            tmp_path, "dflash" if kind == "dflash" else "dflash2", dtype=dtype, **changes
        )
        drafter.reset(11)
        observe_taps(drafter, taps, chunk)
        whole = whole or drafter
        assert drafter.position == 86
        assert drafter.context_lengths == ([29, 75] if kind == "dflash" else [29, 29])
        for buffer, first in zip(drafter._buffers, whole._buffers, strict=True):
            for one, two in zip(context_of(buffer), context_of(first), strict=True):
                assert one.dtype == dtype and mx.array_equal(one, two)
        hidden = drafter.block_hidden(mx.array([5]), BLOCK - 1)
        assert mx.array_equal(hidden, whole.block_hidden(mx.array([5]), BLOCK - 1))
    assert whole is not None and largest(context_of(whole._buffers[0])[0]) > 0.1


def test_drafting_between_the_chunks_changes_nothing(tmp_path: Path) -> None:
    """Rows of a block are scratch: what a round drafted never reaches the next round's context."""
    quiet, busy = make_drafter(tmp_path / "a"), make_drafter(tmp_path / "b")
    for step in range(12):
        taps = tap_rows(1 + step % BLOCK, seed=step)
        observe_taps(quiet, taps)
        observe_taps(busy, taps)
        for count in (1, BLOCK - 1):
            busy.draft(mx.array([step]), count)
    one, two = (drafter.block_hidden(mx.array([5]), 3) for drafter in (quiet, busy))
    assert mx.array_equal(one, two)


@pytest.mark.parametrize("length", [5, 12, 40])
def test_the_prompts_chunks_do_not_change_the_drafts(tmp_path: Path, length: int) -> None:
    """Window 12: prompts below, at and above it, prefilled in steps of several sizes; the
    drafter is shown the rows that can still matter, at their true positions, and no others."""
    target = make_target("hybrid")
    seen_by_step = {}
    for step in (1, 7, 32, 2048):
        drafter = Recorder(make_drafter(tmp_path / str(step), ends=target))
        options = GenerateOptions(
            max_tokens=20, block_size=BLOCK, prefill_step_size=step, gate=False
        )
        run = Generation(
            target, prompt(length), PieceDetokenizer(), drafter=drafter, options=options
        )
        assert len(list(run)) > 5
        assert run.stats.drafter_resets == 0 and drafter.first_row == max(0, length - 11)
        seen_by_step[step] = [as_ids(drafts) for drafts in drafter.drafts]
    assert all(drafts == seen_by_step[2048] for drafts in seen_by_step.values())
    assert len({token for drafts in seen_by_step[1] for token in drafts}) > 10


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    """A position that is not the drafter's own would rotate its keys wrongly."""
    drafter = make_drafter(tmp_path, ends=random_ends())
    observe_taps(drafter, tap_rows(3))
    taps = tap_rows(1)
    ids, hidden = mx.zeros((1,), dtype=mx.int32), mx.zeros((1, 1, taps.shape[2] // len(TAPS)))
    for position in (2, 4):
        with pytest.raises(CacheError, match=f"diverged: it stands at 3, got rows from {position}"):
            drafter.observe(TargetRows(position, ids, taps, hidden))
    with pytest.raises(CacheError, match="it stands at 3, got no taps"):
        drafter.observe(TargetRows(3, ids, None, hidden))
    for mark in (4, "3"):
        with pytest.raises(CacheError, match="not a mark of this context, which stands at 3"):
            drafter.return_to(mark)
    assert drafter.position == 3 and drafter.context_lengths == [3, 3]
