"""A draft attends to all of its context and to nothing else, wherever in the buffer that stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_suite.drafters.dflash import layers
from dflash_suite.drafters.dflash.layers import block_mask
from tests.kit.naive_drafter import is_visible
from tests.kit.tiny_drafter import BLOCK, make_drafter, observe_taps, tap_rows

ANCHOR = mx.array([5])
MIXED: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
}
SIZES = st.integers(0, 9)


@pytest.mark.quick
@given(rows=st.integers(1, 6), context=SIZES, before=SIZES, behind=SIZES, data=st.data())
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_a_mask_over_a_whole_buffer_shows_what_is_live(
    rows: int, context: int, before: int, behind: int, data: st.DataObject
) -> None:
    """before, behind: buffer rows in front of the context and after the block."""
    window = data.draw(st.sampled_from([None, 2, 5, 8]))
    causal = data.draw(st.booleans())
    live = slice(before, before + context + rows)
    mask = layers.mask_outside(
        block_mask(rows, context, window, causal), rows, live, live.stop + behind
    )
    expected = [
        [
            before <= column < live.stop
            and is_visible(row, column - before, context, window, causal)
            for column in range(live.stop + behind)
        ]
        for row in range(rows)
    ]
    assert mask.tolist() == expected


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_draft_on_cuda_attends_to_every_context_row(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the context at any place of the buffer, against the draft over its live rows alone."""
    drafter, starts = make_drafter(tmp_path, kind, **MIXED), []
    for step, count in enumerate((3, 4, 1, 5, 2, 7)):
        observe_taps(drafter, tap_rows(count, seed=step))
        starts.append([buffer.start for buffer in drafter._buffers])
        found = []
        for answer in (False, True):
            monkeypatch.setattr(layers, "on_cuda", lambda answer=answer: answer)
            found.append(drafter.block_hidden(ANCHOR, BLOCK - 1))
        assert mx.allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
    sliding = {start for start, _ in starts}
    assert len(sliding) > 3 and all(full == 0 for _, full in starts)
