"""The drafter's forward against float64 loops: fc, convolutions, residual, scales, logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.dflash.layers import GroupedDynamicConv, make_rope, normed
from dflash_suite.drafters.dtype import drafter_dtype
from tests.kit.naive_drafter import NaiveDrafter, as_float64, convolve, rms_norm
from tests.kit.tiny import HIDDEN, as_ids
from tests.kit.tiny_drafter import (
    BLOCK,
    largest,
    make_drafter,
    observe_taps,
    random_ends,
    random_tensors,
    raw_drafter,
    tap_rows,
)

ANCHOR = mx.array([5])
MIXED: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7,
}
FORWARDS: list[tuple[DrafterKind, dict[str, Any]]] = [
    ("dflash", {}),
    ("dflash", MIXED),
    ("dflash", MIXED | {"is_causal": True}),
    ("dflash", {"attention_bias": True, "rms_norm_eps": 1e-2}),
    ("dflash", {"rope_parameters": {"rope_theta": 50.0}, "num_key_value_heads": 4}),
    ("dflash", {"target_layer_ids": [0, 1, 3]}),
    ("dflash2", {}),
    ("dflash2", {"conv_kernel_size": 3, "conv_group_size": 8}),
    ("dflash2", {"conv_kernel_size": 8, "conv_group_size": 64, "is_causal": True}),
    ("dflash2", {"conv_kernel_size": 1, "conv_group_size": 1}),
    ("dflash2", {"input_embedding_scale": 3.0, "output_multiplier": 0.2}),
    ("dflash2", {"final_logit_softcapping": 2.0, "output_multiplier": 0.5}),
]


def naive_of(kind: DrafterKind, changes: dict[str, Any]) -> NaiveDrafter:
    raw, ends = raw_drafter(kind, **changes), random_ends()
    return NaiveDrafter(raw, random_tensors(raw), ends.embedding, ends.head)


@pytest.mark.parametrize(("kind", "changes"), FORWARDS)
@pytest.mark.parametrize(("context", "count"), [(0, BLOCK - 1), (5, 1), (15, BLOCK - 1)])
def test_the_forward_is_that_of_plain_loops(
    tmp_path: Path, kind: DrafterKind, changes: dict[str, Any], context: int, count: int
) -> None:
    """Windows are 12 and 7 here, so that 15 context rows are cut where a layer slides."""
    drafter, naive = make_drafter(tmp_path, kind, **changes), naive_of(kind, changes)
    taps = tap_rows(context, taps=len(drafter.tap_ids))
    drafter.reset(40)
    observe_taps(drafter, taps)
    position = drafter.position
    assert position == 40 + context
    hidden = drafter.block_hidden(ANCHOR, count)
    rows = as_float64(taps)[0]
    expected = naive.hidden(rows, position, 5, count)
    assert hidden.shape == (1, count, HIDDEN)
    np.testing.assert_allclose(as_float64(hidden)[0], expected, atol=2e-4, rtol=0)
    logits = as_float64(drafter.block_logits(hidden))[0]
    np.testing.assert_allclose(logits, naive.logits(expected), atol=2e-3, rtol=0)
    drafts = as_ids(drafter.draft(ANCHOR, count))
    assert drafts == naive.draft(rows, position, 5, count)
    assert drafter.position == position  # a draft commits nothing


def test_the_drafts_vary(tmp_path: Path) -> None:
    """Or the comparison above would hold for a drafter that ignores its input."""
    for kind in ("dflash", "dflash2"):
        drafter = make_drafter(tmp_path / kind, kind)
        seen: set[int] = set()
        for seed in range(24):
            drafter.reset(0)
            observe_taps(drafter, tap_rows(6, seed))
            seen |= set(as_ids(drafter.draft(mx.array([seed]), BLOCK - 1)))
        assert len(seen) > 20


@pytest.mark.parametrize(("kernel", "group"), [(1, 16), (2, 16), (3, 4), (6, 64), (9, 8)])
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_grouped_dynamic_convolution(tmp_path: Path, kernel: int, group: int, rows: int) -> None:
    """Plane 0 and plane 1 are base plus a projected delta, zero before the block."""
    drafter = make_drafter(tmp_path, conv_kernel_size=kernel, conv_group_size=group)
    conv: GroupedDynamicConv = drafter.model.layers[1].mlp_conv
    source = mx.random.normal((1, rows, HIDDEN), key=mx.random.key(1))
    x = mx.random.normal((1, rows, HIDDEN), key=mx.random.key(2))
    deltas = conv.deltas(source)
    projection = as_float64(conv.kernel_projection.weight)
    expected_deltas = (as_float64(source)[0] @ projection.T).reshape(rows, 2, kernel, -1)
    assert expected_deltas.shape[-1] == HIDDEN // group
    base = as_float64(conv.base_kernel)
    for plane in range(2):
        out = as_float64(conv.convolve(x, deltas, plane))[0]
        expected = convolve(as_float64(x)[0], expected_deltas[:, plane], base[plane], group)
        np.testing.assert_allclose(out, expected, atol=1e-4, rtol=0)


def test_fc_takes_the_taps_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Swapped taps are another input, although every shape still fits."""
    drafter = make_drafter(tmp_path)
    taps = tap_rows(6)
    first, second = mx.split(taps, 2, axis=-1)
    weight = as_float64(drafter.model.fc.weight)
    fused = as_float64(drafter.model.fc(taps))[0]
    parts = (
        as_float64(first)[0] @ weight[:, :HIDDEN].T + as_float64(second)[0] @ weight[:, HIDDEN:].T
    )
    np.testing.assert_allclose(fused, parts, atol=1e-4, rtol=0)
    swapped = mx.concatenate([second, first], axis=-1)
    assert largest(drafter.model.fc(swapped) - drafter.model.fc(taps)) > 0.5
    assert not mx.allclose(after(drafter, swapped), after(drafter, taps), atol=0.1)


def after(drafter: DFlashDrafter, taps: mx.array) -> mx.array:
    """Hidden rows of a block after these taps."""
    drafter.reset(0)
    observe_taps(drafter, taps)
    return drafter.block_hidden(ANCHOR, BLOCK - 1)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_zeroed_taps_change_the_drafts(tmp_path: Path, kind: DrafterKind) -> None:
    """The prompt's features are really consumed."""
    drafter = make_drafter(tmp_path, kind)
    taps = tap_rows(10)
    drafts = []
    for rows in (taps, mx.zeros_like(taps), taps[:, :0]):
        drafter.reset(10 - int(rows.shape[1]))
        observe_taps(drafter, rows)
        drafts.append(as_ids(drafter.draft(ANCHOR, BLOCK - 1)))
    assert drafts[0] != drafts[1] and drafts[0] != drafts[2]


def test_taps_are_normed_after_fc(tmp_path: Path) -> None:
    """hidden_norm makes the context blind to the scale of the target's residual."""
    drafter = make_drafter(tmp_path, "dflash")
    taps = tap_rows(6)
    assert mx.allclose(after(drafter, taps), after(drafter, 64 * taps), atol=1e-3)


def test_the_norm_epsilon_is_the_files_own(tmp_path: Path) -> None:
    """1e-5 read as 1e-6 would cost acceptance and nothing else."""
    taps = 1e-3 * tap_rows(6)
    small = after(make_drafter(tmp_path / "a", rms_norm_eps=1e-6), taps)
    large = after(make_drafter(tmp_path / "b", rms_norm_eps=1e-5), taps)
    assert largest(small - large) > 1e-3


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "linear", "factor": 4.0},
    ],
)
def test_rope_scaling_is_applied(tmp_path: Path, scaling: dict[str, Any]) -> None:
    """Yarn settings reach mlx-lm's rope, and plain rope does not get any."""
    vectors = mx.random.normal((1, 1, 9, 16), key=mx.random.key(4))
    changes: dict[str, Any] = {
        "rope_scaling": scaling,
        "rope_theta": 1e4,
        "rope_parameters": None,
    }
    plain = make_rope(make_drafter(tmp_path / "plain", "dflash").config)
    scaled = make_rope(make_drafter(tmp_path / "scaled", "dflash", **changes).config)
    assert largest(plain(vectors, offset=30) - scaled(vectors, offset=30)) > 0.1
    expected = mx.fast.rope(vectors, dims=16, traditional=False, base=1e4, scale=1.0, offset=30)
    assert mx.array_equal(plain(vectors, offset=30), expected)
    if scaling["rope_type"] == "linear":
        expected = mx.fast.rope(
            vectors, dims=16, traditional=False, base=1e4, scale=0.25, offset=30
        )
        assert mx.array_equal(scaled(vectors, offset=30), expected)


def run_layers(drafter: DFlashDrafter, residual: mx.array, dtype: mx.Dtype) -> mx.array:
    """All layers after one another, the stream between them held in `dtype`."""
    rope, contexts = drafter._rope, drafter._buffers
    residual = residual.astype(dtype)
    for layer, context in zip(drafter.model.layers, contexts, strict=True):
        residual = layer(residual, rope, 0, context).astype(dtype)
    return residual


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_the_residual_stream_is_float32(tmp_path: Path, kind: DrafterKind, dtype: mx.Dtype) -> None:
    """An outlier channel of 1e5 survives, whatever the branches' dtype; float16 loses it."""
    drafter = make_drafter(tmp_path, kind, dtype=dtype)
    block = mx.random.normal((1, BLOCK, HIDDEN), key=mx.random.key(9))
    block[:, :, 3] = 1e5
    out = run_layers(drafter, block, mx.float32)
    assert out.dtype == mx.float32 and mx.isfinite(out).all().item()
    assert abs(out[0, 0, 3].item() - 1e5) < 1e3
    half = run_layers(drafter, block, mx.float16)
    assert not mx.isfinite(half).all().item()
    final = normed(drafter.model.norm, out)
    assert final.dtype == dtype and mx.isfinite(final).all().item()


def test_an_outlier_in_the_embedding_reaches_the_drafts_as_numbers(tmp_path: Path) -> None:
    """The same through the drafter's own path: the target's embedding row has the outlier."""
    ends = random_ends()
    ends.embedding[:, 3] = 1e5
    drafter = make_drafter(tmp_path, ends=ends, dtype=mx.bfloat16)
    hidden = after(drafter, tap_rows(6))
    assert hidden.dtype == mx.bfloat16 and mx.isfinite(hidden).all().item()
    assert mx.isfinite(drafter.block_logits(hidden)).all().item()


def test_a_branch_overflows_float16_but_not_the_dtype_of_a_drafter(tmp_path: Path) -> None:
    """Why a float16 target gets a bfloat16 drafter: down_proj alone passes 65504."""
    outputs = {}
    for dtype in (mx.float16, mx.bfloat16):
        drafter = make_drafter(tmp_path, "dflash", dtype=dtype)
        down = drafter.model.layers[0].mlp.down_proj
        assert mx.isfinite(down.weight * 50_000).all().item()
        down.weight = down.weight * 50_000
        outputs[dtype] = mx.isfinite(after(drafter, tap_rows(6))).all().item()
    assert outputs == {mx.float16: False, mx.bfloat16: True}


class _Typed:
    """A stand-in for a target of some compute dtype."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self.compute_dtype = dtype


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        (mx.float32, mx.float32),
        (mx.bfloat16, mx.bfloat16),
        (mx.float16, mx.bfloat16),
    ],
)
def test_the_dtype_of_a_drafter_follows_its_target(target: mx.Dtype, drafter: mx.Dtype) -> None:
    stand_in: Any = _Typed(target)
    assert drafter_dtype(stand_in) == drafter


def test_the_embedding_is_scaled_by_the_files_factor(tmp_path: Path) -> None:
    plain = make_drafter(tmp_path / "a", "dflash")
    scaled = make_drafter(tmp_path / "b", "dflash", input_embedding_scale=8.0)
    assert not mx.allclose(after(plain, tap_rows(6)), after(scaled, tap_rows(6)), atol=0.05)


def test_logits_are_multiplied_before_they_are_capped(tmp_path: Path) -> None:
    ends = random_ends()
    drafter = make_drafter(tmp_path, ends=ends, output_multiplier=0.5, final_logit_softcapping=3.0)
    hidden = mx.random.normal((1, 4, HIDDEN), key=mx.random.key(3))
    logits = as_float64(hidden)[0] @ as_float64(ends.head).T * 0.5
    assert np.abs(logits).max() > 6
    expected = np.tanh(logits / 3.0) * 3.0
    np.testing.assert_allclose(
        as_float64(drafter.block_logits(hidden))[0], expected, atol=1e-4, rtol=0
    )


def test_the_norm_of_the_residual_is_taken_in_float32() -> None:
    norm = nn.RMSNorm(HIDDEN, eps=1e-6)
    norm.weight = mx.random.normal((HIDDEN,), key=mx.random.key(0)).astype(mx.bfloat16)
    residual = 1e4 * mx.random.normal((1, 3, HIDDEN), key=mx.random.key(1))
    out = normed(norm, residual)
    expected = rms_norm(as_float64(residual)[0], as_float64(norm.weight), 1e-6)
    assert out.dtype == mx.bfloat16
    np.testing.assert_allclose(as_float64(out)[0], expected, rtol=2**-8, atol=1e-6)
