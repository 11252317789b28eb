"""The text of the CUDA kernels, run on a CPU: right up to rounding, and rows independent of their
neighbours, of the width and of keys behind them, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.qwen3_5 import GatedDeltaNet, TextModelArgs

from dflash_suite.core.cuda.ops.attention import AttentionRule, attend, prepare, prepare_keys
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from dflash_suite.core.cuda.runtime.steps import NO_PACKS, run_steps, turn
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.cuda import steps as draft
from dflash_suite.drafters.dflash.cuda.conv import after_branch, before_branch, fits_conv
from dflash_suite.drafters.dflash.layers import (
    CandidateSelector,
    GroupedDynamicConv,
    block_mask,
    normed,
)
from tests.kit.cuda_on_cpu import COMPILER, CudaOnCpu
from tests.kit.tiny_drafter import raw_drafter, write_config

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to stand for nvcc")
BF16 = mx.bfloat16


@pytest.fixture(autouse=True)
def device(emulated: CudaOnCpu) -> Iterator[CudaOnCpu]:
    mx.random.seed(0)
    before = len(emulated.calls)
    yield emulated
    assert len(emulated.calls) > before, "no kernel ran"


def normal(*shape: int) -> mx.array:
    return mx.random.normal(shape).astype(BF16)


def distance(found: mx.array, expected: mx.array) -> float:
    a, b = found.astype(mx.float32), expected.astype(mx.float32)
    error: Any = mx.linalg.norm((a - b).flatten()) / mx.linalg.norm(b.flatten())
    return float(error.item())


def linear(inputs: int, outputs: int, bits: int) -> Any:
    layer: Any = nn.Linear(inputs, outputs, bias=False)
    layer.weight = (mx.random.normal((outputs, inputs)) * inputs**-0.5).astype(BF16)
    return layer if bits == 16 else nn.QuantizedLinear.from_linear(layer, 64, bits)


def rms_norm(width: int) -> Any:
    norm: Any = nn.RMSNorm(width, eps=1e-6)
    norm.weight = normal(width)
    return norm


def exactly(layer: Any, x: mx.array) -> mx.array:
    """The product in float32, of the weights as the kernel has them."""
    weight = layer.weight
    if isinstance(layer, nn.QuantizedLinear):
        weight = mx.dequantize(weight, layer.scales, layer.biases, 64, 4)
    product: mx.array = x.astype(mx.float32) @ weight.astype(mx.float32).T
    return product


@pytest.mark.thinned(2)
@pytest.mark.parametrize("bits", [16, 4])
def test_projections_of_any_number_of_outputs(bits: int) -> None:
    kernels = CudaKernels()
    layers = [linear(128, outputs, bits) for outputs in (4, 24, 32)]
    x, residual = normal(1, 9, 128), normal(1, 9, 24)
    for rows in (1, 3, 9):
        block = x[:, :rows]
        made = kernels.several(layers, block, (0, 2, 0))
        assert [array.shape for array in made] == [(1, rows, 4), (1, rows, 2, 12), (1, rows, 32)]
        for layer, array in zip(layers, made, strict=True):
            flat = array.reshape(1, rows, -1)
            assert distance(flat, exactly(layer, block)) < (5e-3 if bits == 16 else 1e-2)
            assert mx.array_equal(kernels.linear(layer, block), flat)
            alone = kernels.linear(layer, x[:, rows - 1 : rows])
            assert mx.array_equal(alone[:, 0], flat[:, -1])
        added = kernels.linear(layers[1], block, residual[:, :rows])
        assert distance(added, exactly(layers[1], block) + residual[:, :rows]) < 1e-2
        gate, up = layers[1], linear(128, 24, bits)
        gated = kernels.gated(gate, up, block)
        assert distance(gated, nn.silu(exactly(gate, block)) * exactly(up, block)) < 2e-2


@pytest.mark.parametrize("bits", [16, 4])
def test_a_projection_of_many_inputs_adds_all_of_them(bits: int) -> None:
    kernels, wide, x = CudaKernels(), 2304, normal(1, 9, 2304)  # a warp takes several steps of them
    layer, pair = linear(wide, 20, bits), [linear(wide, 16, bits) for _ in range(2)]
    for rows in (1, 8, 9):
        block = x[:, :rows]
        assert distance(kernels.linear(layer, block), exactly(layer, block)) < 1e-2
        gated = nn.silu(exactly(pair[0], block)) * exactly(pair[1], block)
        assert distance(kernels.gated(pair[0], pair[1], block), gated) < 2e-2


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("bits", "dtype"), [(16, BF16), (4, mx.float32)])
def test_a_norm_on_the_way_is_the_norm_before(bits: int, dtype: mx.Dtype) -> None:
    kernels, norm = CudaKernels(), rms_norm(512)
    layers = [linear(512, outputs, bits) for outputs in (24, 32)]
    x, residual = mx.random.normal((1, 11, 512)).astype(dtype) * 3, normal(1, 11, 24)
    for rows in (1, 11):
        block = x[:, :rows]
        before = norm(block).astype(BF16)
        pairs = [
            *zip(
                kernels.several(layers, block, norm=norm),
                kernels.several(layers, before),
                strict=True,
            ),
            (
                kernels.linear(layers[0], block, residual[:, :rows], norm),
                kernels.linear(layers[0], before, residual[:, :rows]),
            ),
            (
                kernels.gated(layers[0], layers[0], block, norm),
                kernels.gated(layers[0], layers[0], before),
            ),
        ]
        for found, expected in pairs:
            assert distance(found, expected) < 5e-3
        last = kernels.several(layers, x[:, rows - 1 : rows], norm=norm)
        assert all(mx.array_equal(a[:, 0], b[0][:, -1]) for a, b in zip(last, pairs, strict=False))


@pytest.mark.parametrize(("heads", "dim"), [(3, 32), (2, 128), (1, 256)])
def test_a_gated_norm_on_the_way_is_the_one_before(heads: int, dim: int) -> None:
    kernels, module, norm = CudaKernels(), linear(heads * dim, 24, 16), rms_norm(dim)
    y, z, residual = normal(1, 9, heads, dim), normal(1, 9, heads, dim) * 3, normal(1, 9, 24)
    found = kernels.linear_gate_normed(module, y, norm, z, residual)
    before = kernels.gated_norm(norm, y, z)
    assert distance(found - residual, kernels.linear(module, before)) < 2e-2
    for row in (0, 8):
        at = slice(row, row + 1)
        alone = kernels.linear_gate_normed(module, y[:, at], norm, z[:, at], residual[:, at])
        assert mx.array_equal(alone[:, 0], found[:, row])


@pytest.mark.parametrize("dtype", [BF16, mx.float32])
def test_the_recurrence_leaves_every_state_and_window(dtype: mx.Dtype) -> None:
    arguments: Any = {
        "hidden_size": 64,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_attention_heads": 2,
    }
    layer: Any = GatedDeltaNet(TextModelArgs(**arguments))
    layer.eval()
    layer.conv1d.weight = (mx.random.normal(layer.conv1d.weight.shape) * 0.5).astype(dtype)
    layer.dt_bias = mx.random.normal(layer.dt_bias.shape).astype(dtype)
    layer.A_log = mx.log(mx.random.uniform(0.1, 8.0, layer.A_log.shape))
    rows, kernels = 19, CudaKernels()  # more than the kernel's chunk of 16
    qkv = mx.random.normal((1, rows, layer.conv_dim)).astype(dtype)
    window = mx.random.normal((1, 3, layer.conv_dim)).astype(dtype)
    a, b = (mx.random.normal((1, rows, 4)).astype(dtype) for _ in range(2))
    state = mx.random.normal((1, 4, 32, 32))
    y, states, windows = kernels.gdn(layer, (qkv, a, b), window, state, every=True)
    expected = OpKernels().gdn(layer, (qkv, a, b), window, state, every=True)
    bound = 1e-5 if dtype == mx.float32 else 2e-2
    for found, right in zip((y, states, windows), expected, strict=True):
        assert found.shape == right.shape and distance(found, right) < bound
    from_block(layer, (qkv[:, :3], a[:, :3], b[:, :3]), windows, states)
    whole = kernels.gdn(layer, (qkv, a, b), window, state)
    assert mx.array_equal(whole[1], states[-1:]) and mx.array_equal(whole[2], windows[:, rows:])
    for row in range(rows):
        at = slice(row, row + 1)
        one, state, window = kernels.gdn(layer, (qkv[:, at], a[:, at], b[:, at]), window, state)
        assert mx.array_equal(one[:, 0], y[:, row]) and mx.array_equal(state[0], states[row])
        assert mx.array_equal(window, windows[:, row + 1 : row + 4])
    norm = SimpleNamespace(weight=mx.random.normal((32,)).astype(dtype), eps=1e-6)
    z = mx.random.normal(y.shape).astype(dtype)
    plain = mx.fast.rms_norm(y, norm.weight, 1e-6) * nn.silu(z.astype(mx.float32))
    assert distance(kernels.gated_norm(norm, y, z), plain.reshape(1, rows, -1)) < bound


def from_block(layer: Any, fed: tuple[mx.array, ...], windows: mx.array, states: mx.array) -> None:
    """Rows behind any kept prefix of a block: from its arrays whole as from the prefix cut out."""
    qkv, a, b = fed
    found = []
    for every in (True, False):
        for keep in (1, 2, 16, states.shape[0]):
            place = mx.array([5, keep], dtype=mx.int32)  # of the position nothing depends
            whole = CudaKernels().gdn(layer, (qkv, a, b), windows, states, every, place)
            plain = OpKernels().gdn(layer, (qkv, a, b), windows, states, every, place)
            window, state = windows[:, keep : keep + 3], states[keep - 1 : keep]
            cut = CudaKernels().gdn(layer, (qkv, a, b), window, state, every)
            right = OpKernels().gdn(layer, (qkv, a, b), window, state, every)
            for index in range(3):
                assert mx.array_equal(whole[index], cut[index])
                assert mx.array_equal(plain[index], right[index])
            none = mx.array([5, 0], dtype=mx.int32)
            for one, other in ((CudaKernels(), cut), (OpKernels(), right)):
                settled = one.gdn(layer, (qkv, a, b), window, state, every, none)
                assert all(mx.array_equal(x, y) for x, y in zip(settled, other, strict=True))
            found.append(cut[0])
    assert not mx.array_equal(found[0], found[1])


@pytest.mark.parametrize(("rows", "count"), [(1, 5), (4, 140), (8, 260)])
def test_attention_reads_a_part_of_its_buffers(rows: int, count: int) -> None:
    heads, kv_heads, dim, first = 4, 2, 64, 7
    attention: Any = nn.Module()
    attention.heads, attention.kv_heads = heads, kv_heads
    for name in ("q_norm", "k_norm"):
        setattr(attention, name, rms_norm(dim))
    rope = nn.RoPE(32, traditional=False, base=1e4)
    packed, raw = normal(1, rows, heads, 2 * dim), normal(1, rows, kv_heads, dim)
    at = mx.array([count - rows], dtype=mx.int32)
    queries, keys, moved = prepare(attention, rope, (packed, raw, raw), at)
    alone = prepare_keys(attention, rope, raw, raw, at)
    assert mx.array_equal(alone[0], keys) and mx.array_equal(alone[1], moved)
    assert mx.array_equal(moved, raw.transpose(0, 2, 1, 3))
    turned = rope(attention.k_norm(raw).transpose(0, 2, 1, 3), offset=count - rows)
    assert distance(keys, turned) < 1e-2
    buffer = normal(2, 1, kv_heads, 300, dim)
    held = [part[:, :, first : first + count] for part in buffer]
    span, scale = mx.array([first, count - rows], dtype=mx.int32), dim**-0.5
    out = attend(queries, (buffer[0], buffer[1]), span, AttentionRule(scale), gate=packed)
    plain = mx.fast.scaled_dot_product_attention(
        *(array.astype(mx.float32) for array in (queries, *held)), scale=scale, mask="causal"
    ).transpose(0, 2, 1, 3)
    gate = mx.sigmoid(packed[..., dim:].astype(mx.float32))
    assert distance(out, (plain * gate).reshape(1, rows, -1)) < 1e-2
    # The block's keys in arrays of their own, and others where the buffer had them.
    own = held[0][:, :, count - rows :], held[1][:, :, count - rows :]
    inside = mx.arange(300)[:, None] < first + count - rows
    context = mx.where(inside, buffer, normal(*buffer.shape))
    apart = attend(
        queries, (context[0], context[1]), span, AttentionRule(scale), gate=packed, block=own
    )
    assert mx.array_equal(out, apart)
    row = rows // 2  # by itself, with nothing behind it
    shorter = mx.array([first, count - rows + row], dtype=mx.int32)
    cut = [part[:, :, : first + count - rows + row + 1] for part in buffer]
    one, its_gate = queries[:, :, row : row + 1], packed[:, row : row + 1]
    single = attend(one, (cut[0], cut[1]), shorter, AttentionRule(scale), gate=its_gate)
    assert mx.array_equal(single[:, 0], out[:, row])
    wide = attend(
        queries,
        (context[0], context[1]),
        span,
        AttentionRule(scale, causal=False, window=100),
        block=own,
    )
    mask = block_mask(rows, count - rows, 100, causal=False)
    plain = mx.fast.scaled_dot_product_attention(
        *(array.astype(mx.float32) for array in (queries, *held)), scale=scale, mask=mask
    ).transpose(0, 2, 1, 3)
    assert distance(wide, plain.reshape(1, rows, -1)) < 1e-2


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("bits", "taps"), [(16, 2), (4, 2), (16, 1), (4, 3), (16, 8)])
def test_a_drafts_convolutions_are_the_separate_ones(bits: int, taps: int, tmp_path: Path) -> None:
    width = 256
    changes: Any = {"hidden_size": width, "intermediate_size": 128, "conv_kernel_size": taps}
    config = read_drafter_config(write_config(tmp_path, raw_drafter("dflash2", **changes)))
    conv: Any = GroupedDynamicConv(config)
    assert conv.groups == 16 and conv.kernel_size == taps
    conv.base_kernel = normal(*conv.base_kernel.shape)
    conv.kernel_projection = linear(width, conv.kernel_projection.weight.shape[0], bits)
    assert fits_conv(conv, 7)
    down, kernels = linear(128, width, bits), CudaKernels()
    wide, residual, norm = normal(1, 7, 128), mx.random.normal((1, 7, width)), rms_norm(width)
    mixed, late = before_branch(kernels, conv, residual, norm)
    x = draft.row_norm(residual, norm)
    assert distance(x, normed(norm, residual)) < 5e-3
    early, later = mx.split(kernels.linear(conv.kernel_projection, x), 2, axis=-1)
    assert distance(late, later) < 5e-3
    assert distance(mixed, draft.convolve(conv, x, early, 0)) < 5e-3
    assert distance(mixed, conv.convolve(x, conv.deltas(x), 0)) < 2e-2
    out, y = after_branch(kernels, down, conv, wide, late, residual), kernels.linear(down, wide)
    assert mx.array_equal(out, draft.convolve(conv, y, late, 1, residual))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
@pytest.mark.parametrize("vocab", [33, 5000, 20000])
def test_the_largest_logits_come_in_order_and_of_equal_ones_the_first(
    vocab: int, dtype: mx.Dtype
) -> None:
    mx.random.seed(vocab)
    logits = (mx.random.normal((1, 3, vocab)) * 2 - 6).astype(mx.bfloat16)  # many are equal
    plain = np.array(logits[0].astype(mx.float32))
    plain[1] = -np.round(plain[1])  # hardly anything else
    plain[2, ::2] = -np.inf
    plain[2, 1::7] = np.nan  # no larger than that
    logits = mx.array(plain)[None].astype(dtype)
    steps = draft.top_steps(logits, 3, vocab, dtype)
    assert len(steps) == (2 if vocab > 8192 else 1)
    wanted = [f"{steps[-1].name}.values", f"{steps[-1].name}.ids"]
    made, _ = run_steps(steps, turn().token, wanted, NO_PACKS)
    values, ids = np.array(made[wanted[0]]), np.array(made[wanted[1]])
    known = np.where(np.isnan(plain), -np.inf, plain)
    for row in range(3):
        order = np.lexsort((np.arange(vocab), -known[row]))[: draft.TOP]
        assert ids[row].tolist() == order.tolist()
        finite = np.isfinite(known[row][order])
        assert values[row][finite].tolist() == known[row][order][finite].tolist()


def test_the_walk_takes_the_selectors_path(tmp_path: Path) -> None:
    config = read_drafter_config(write_config(tmp_path, raw_drafter("dflash2")))
    selector: Any = CandidateSelector(config)
    selector.predecessor_codebook = normal(*selector.predecessor_codebook.shape)
    selector.successor_codebook = normal(*selector.successor_codebook.shape)
    selector.top_k = draft.TOP
    hidden, logits = normal(1, 6, config.hidden_size), normal(1, 6, config.vocab_size) * 4
    logits = (logits.astype(mx.float32) + mx.arange(config.vocab_size) * 1e-4).astype(mx.float32)
    anchor = mx.array([3], dtype=mx.int32)
    projected = selector.hidden_projection.weight = normal(*selector.hidden_projection.weight.shape)
    projected = hidden @ selector.hidden_projection.weight.T
    tops = draft.top_steps(logits, 6, config.vocab_size, logits.dtype)
    steps = draft.walk_steps(selector, projected, tops, anchor)
    made, _ = run_steps(steps, turn().token, ["walk.out"], NO_PACKS)
    path = made["walk.out"]
    assert path.tolist() == selector(hidden, logits, anchor).tolist()
    assert len({*map(str, path)}) > 3, "a path of one id shows nothing"
