"""What a block row can see: the context within the window, and the block itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.drafters.dflash import layers
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.dflash.layers import block_mask
from tests.kit.naive_drafter import is_visible
from tests.kit.tiny import HIDDEN, as_ids
from tests.kit.tiny_drafter import BLOCK, make_drafter, observe_taps, tap_rows

pytestmark = pytest.mark.quick

ANCHOR = mx.array([5])
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 8,
}
MIXED: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
}


def hidden_after(drafter: DFlashDrafter, taps: mx.array, position: int = 0) -> mx.array:
    """Hidden rows of a whole block whose context starts at `position`."""
    drafter.reset(position)
    observe_taps(drafter, taps)
    return drafter.block_hidden(ANCHOR, BLOCK - 1)


def replaced(taps: mx.array, start: int, end: int) -> mx.array:
    """The same rows but for start..end."""
    other = tap_rows(int(taps.shape[1]), seed=99)
    return mx.concatenate([taps[:, :start], other[:, start:end], taps[:, end:]], axis=1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2, 5, 8])
@pytest.mark.parametrize("context", [0, 1, 3, 4, 7, 9, 20])
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_the_mask_is_the_visibility_rule(
    causal: bool, window: int | None, context: int, rows: int
) -> None:
    mask = block_mask(rows, context, window, causal)
    expected = [
        [is_visible(row, key, context, window, causal) for key in range(context + rows)]
        for row in range(rows)
    ]
    if mask is None:
        assert all(all(row) for row in expected)
    else:
        assert mask.tolist() == expected


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("context", [0, 5, 7])
def test_a_later_block_row_is_seen_by_an_earlier_one_unless_causal(
    tmp_path: Path, window: int | None, causal: bool, context: int
) -> None:
    """Block diffusion: bidirectional inside the block. The perturbed row is the last one."""
    kind = "sliding_attention" if window else "full_attention"
    drafter = make_drafter(
        tmp_path,
        "dflash",
        is_causal=causal,
        sliding_window=window,
        layer_types=[kind, kind],
    )
    observe_taps(drafter, tap_rows(context))
    attention, rope = drafter.model.layers[0].self_attn, drafter._rope
    block = mx.random.normal((1, BLOCK, HIDDEN), key=mx.random.key(1))
    other = mx.concatenate([block[:, :-1], -block[:, -1:]], axis=1)
    one = attention(block, rope, context, drafter._buffers[0])
    two = attention(other, rope, context, drafter._buffers[0])
    changed = [not mx.array_equal(one[0, row], two[0, row]) for row in range(BLOCK)]
    assert changed == [not causal] * (BLOCK - 1) + [True]


@pytest.mark.parametrize(
    ("stated", "depends"),
    [({}, [False, True]), ({"is_causal": True}, [False] * 2), ({"is_causal": False}, [True] * 2)],
)
def test_causality_of_each_layer_is_the_configs(
    tmp_path: Path, stated: dict[str, Any], depends: list[bool]
) -> None:
    """`[sliding, full]`: does block row 0 depend on row 1, layer by layer?"""
    drafter = make_drafter(tmp_path, "dflash", **MIXED, **stated)
    block = mx.random.normal((1, 2, HIDDEN), key=mx.random.key(1))
    other = mx.concatenate([block[:, :1], -block[:, 1:]], axis=1)
    found = []
    for layer, context in zip(drafter.model.layers, drafter._buffers, strict=True):
        one, two = (layer.self_attn(x, drafter._rope, 0, context) for x in (block, other))
        found.append(not mx.array_equal(one[0, 0], two[0, 0]))
    assert found == depends


def test_more_drafts_change_the_first_one_only_where_the_block_is_bidirectional(
    tmp_path: Path,
) -> None:
    taps = tap_rows(5)
    for causal in (True, False):
        drafter = make_drafter(tmp_path / str(causal), "dflash", **SLIDING, is_causal=causal)
        observe_taps(drafter, taps)
        short, long = drafter.block_hidden(ANCHOR, 1), drafter.block_hidden(ANCHOR, BLOCK - 1)
        assert mx.allclose(short[0, 0], long[0, 0], atol=1e-5) == causal


@pytest.mark.parametrize("context", [6, 8, 9, 40])
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_rows_older_than_the_window_do_not_matter(tmp_path: Path, kind: Any, context: int) -> None:
    """Window 8: bitwise the same whatever stood before the last 7 rows; those do matter."""
    drafter = make_drafter(tmp_path, kind, **SLIDING)
    taps = tap_rows(context)
    before = hidden_after(drafter, taps)
    outside = max(0, context - 7)
    assert mx.array_equal(hidden_after(drafter, replaced(taps, 0, outside)), before)
    oldest = replaced(taps, outside, outside + 1)
    assert not mx.array_equal(hidden_after(drafter, oldest), before)
    assert (outside > 0) == (context > 7)


def test_a_full_layer_sees_every_row(tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, "dflash", **MIXED)
    taps = tap_rows(40)
    changed = hidden_after(drafter, replaced(taps, 0, 1))
    assert not mx.array_equal(changed, hidden_after(drafter, taps))
    assert drafter.context_rows is None and drafter.context_lengths == [7, 40]


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("rows", [3, 8, 20])
def test_only_relative_positions_count(tmp_path: Path, kind: Any, rows: int) -> None:
    """The same last rows at offset 0 and at 1000 give the same logits, by RoPE's nature;
    clipped context with other positions for the block would not."""
    drafter = make_drafter(tmp_path, kind, **SLIDING)
    taps = tap_rows(rows)
    near, far = (hidden_after(drafter, taps, position) for position in (0, 1000))
    assert mx.allclose(near, far, atol=2e-3)
    assert not mx.array_equal(near, far)  # the angles really are others
    observe_taps(drafter, tap_rows(1, seed=5))
    assert drafter.position == 1001 + rows
    assert not mx.allclose(drafter.block_hidden(ANCHOR, BLOCK - 1), near, atol=0.05)


def test_a_gap_is_not_the_same_as_no_gap(tmp_path: Path) -> None:
    """Reset keeps true positions, so the distance to the block is the true one."""
    drafter = make_drafter(tmp_path, "dflash")
    taps = tap_rows(4)
    adjacent = hidden_after(drafter, taps)
    drafter.reset(0)
    observe_taps(drafter, taps)
    drafter._position += 30  # as if the block stood 30 rows later than its context
    assert not mx.allclose(drafter.block_hidden(ANCHOR, BLOCK - 1), adjacent, atol=0.05)


def test_reset_forgets_everything(tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path)
    observe_taps(drafter, tap_rows(9))
    drafter.reset(3)
    fresh = as_ids(drafter.draft(ANCHOR, 4))
    assert (drafter.position, drafter.context_lengths) == (3, [0, 0])
    again = make_drafter(tmp_path / "again")
    again.reset(3)
    assert as_ids(again.draft(ANCHOR, 4)) == fresh
    observe_taps(drafter, tap_rows(2))
    assert (drafter.position, drafter.context_lengths) == (5, [2, 2])


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("rows", [0, 3, 30, 300])
def test_attention_over_whole_buffers_is_attention_over_their_live_rows(
    tmp_path: Path, kind: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = make_drafter(tmp_path, kind, **MIXED)
    taps = tap_rows(rows) if rows else tap_rows(1)[:, :0]
    expected = hidden_after(drafter, taps)
    monkeypatch.setattr(layers, "on_cuda", lambda: True)
    found = hidden_after(drafter, taps)
    assert all(length < buffer.capacity for length, buffer in _buffers(drafter))
    assert mx.allclose(found, expected, rtol=1e-5, atol=1e-5)


def _buffers(drafter: DFlashDrafter) -> list[tuple[int, Any]]:
    return list(zip(drafter.context_lengths, drafter._buffers, strict=True))
