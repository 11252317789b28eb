"""Are the fused kernels right on this GPU? Against float64, and each row against one row alone.

python examples/gpu_bench/check_kernels.py
"""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.qwen3_5 import GatedDeltaNet, TextModelArgs
from setting import no_gpu

from dflash_suite.core.cuda.ops.attention import (
    AttentionRule,
    attend,
    fits_heads,
    prepare,
    prepare_keys,
)
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.reference_ops import OpKernels

WIDTHS = (1, 2, 3, 5, 8, 9, 13, 16)
SIZES = ((4096, 12288), (12288, 4096), (4096, 1024), (4096, 64), (256, 640), (4096, 32))
"""(K, N)."""
HEADS = ((16, 4, 256, 64), (32, 8, 128, 128), (4, 2, 64, 16))
"""(query heads, key heads, head size, rotated)."""


def main() -> int:
    """Print one line a case; exit 1 where one is wrong."""
    if no_gpu():
        return 1
    mx.random.seed(0)
    failures = sum(check_attention(*case) for case in HEADS)
    if "--attention" in sys.argv:
        print("failures:", failures)
        return 1 if failures else 0
    failures += sum(check_linear(k, n, bits) for k, n in SIZES for bits in (16, 4))
    failures += sum(
        check_gdn(dtype, rows) for dtype in (mx.bfloat16, mx.float32) for rows in WIDTHS
    )
    failures += sum(check_gdn(dtype, 300) for dtype in (mx.bfloat16, mx.float32))
    print("failures:", failures)
    return 1 if failures else 0


def check_linear(inputs: int, outputs: int, bits: int) -> int:
    """A layer and a gated pair at every width."""
    kernels, ops = CudaKernels(), OpKernels()
    layers: list[Any] = []
    for _ in range(2):
        layer: Any = nn.Linear(inputs, outputs, bias=False)
        layer.weight = (mx.random.normal((outputs, inputs)) * inputs**-0.5).astype(mx.bfloat16)
        layers.append(layer if bits == 16 else nn.QuantizedLinear.from_linear(layer, 64, bits))
    x = mx.random.normal((1, 16, inputs)).astype(mx.bfloat16)
    residual = mx.random.normal((1, 16, outputs)).astype(mx.bfloat16)
    norm = _norm(inputs)
    exact = [_exact(layer, x) for layer in layers]
    worst, bitwise = 0.0, True
    for rows in WIDTHS:
        block = x[:, :rows]
        plain = kernels.linear(layers[0], block)
        added = kernels.linear(layers[0], block, residual[:, :rows])
        gated = kernels.gated(layers[0], layers[1], block)
        silu = exact[0] / (1 + np.exp(-exact[0])) * exact[1]
        worst = max(
            worst,
            _error(plain, exact[0][:, :rows]),
            _error(added, exact[0][:, :rows] + _f64(residual[:, :rows])),
            _error(gated, silu[:, :rows]),
        )
        fed = kernels.several(layers, block, norm=norm)
        for layer, found in zip(layers, fed, strict=True):
            worst = max(worst, _error(found, _exact(layer, norm(block))))
        for row in (0, rows - 1):
            alone = x[:, row : row + 1]
            single = kernels.several(layers, alone, norm=norm)
            bitwise &= all(
                bool(mx.array_equal(a[:, 0], b[:, row])) for a, b in zip(single, fed, strict=True)
            )
            bitwise &= bool(mx.array_equal(plain[:, row], kernels.linear(layers[0], alone)[:, 0]))
            bitwise &= bool(
                mx.array_equal(gated[:, row], kernels.gated(layers[0], layers[1], alone)[:, 0])
            )
    stock = _error(ops.linear(layers[0], x), exact[0])
    wrong = not (worst < 1e-2 and bitwise)
    print(
        f"linear K={inputs} N={outputs} {bits}-bit: error {worst:.1e} (mlx {stock:.1e}), "
        f"rows bitwise {bitwise}{'  WRONG' if wrong else ''}",
        flush=True,
    )
    return int(wrong)


def check_attention(heads: int, kv_heads: int, dim: int, rotated: int) -> int:
    """Norms and rotation, then attention over 5 to 2,500 keys, against MLX; rows alone."""
    attention: Any = nn.Module()
    attention.heads, attention.kv_heads = heads, kv_heads
    rope = nn.RoPE(rotated, traditional=False, base=1e7)
    for name in ("q_norm", "k_norm"):
        setattr(attention, name, _norm(dim))
    packed = mx.random.normal((1, 16, heads, 2 * dim)).astype(mx.bfloat16)
    raw = mx.random.normal((1, 16, kv_heads, dim)).astype(mx.bfloat16)
    buffer = mx.random.normal((2, 1, kv_heads, 2600, dim)).astype(mx.bfloat16)
    worst, bitwise = 0.0, True
    for rows, count in ((1, 5), (1, 2500), (8, 40), (8, 129), (16, 2500), (5, 1000)):
        if heads // kv_heads * rows > 64 or not fits_heads(attention, rope, rows):
            continue
        at = mx.array([count - rows], dtype=mx.int32)
        heads_in = packed[:, :rows], raw[:, :rows], raw[:, :rows]
        queries, keys, moved = prepare(attention, rope, heads_in, at)
        alone = prepare_keys(attention, rope, *heads_in[1:], at)
        bitwise &= bool(mx.array_equal(alone[0], keys) and mx.array_equal(alone[1], moved))
        bitwise &= bool(mx.array_equal(moved, raw[:, :rows].transpose(0, 2, 1, 3)))
        split = packed[:, :rows, :, :dim]
        for made, heads_of, norm in (
            (queries, split, attention.q_norm),
            (keys, raw[:, :rows], attention.k_norm),
        ):
            turned = rope(norm(heads_of).transpose(0, 2, 1, 3), offset=count - rows)
            worst = max(worst, _error(made, _f64(turned)))
        first = 60  # the context begins somewhere in its buffer
        held = [part[:, :, first : first + count] for part in buffer]
        whole, span = (buffer[0], buffer[1]), mx.array([first, count - rows])
        rule = AttentionRule(dim**-0.5)
        own = held[0][:, :, count - rows :], held[1][:, :, count - rows :]
        for gate in (None, packed[:, :rows]):
            out = attend(queries, whole, span, rule, gate=gate)
            plain = mx.fast.scaled_dot_product_attention(
                *(a.astype(mx.float32) for a in (queries, *held)), scale=dim**-0.5, mask="causal"
            ).transpose(0, 2, 1, 3)
            if gate is not None:
                plain = plain * mx.sigmoid(gate[..., dim:].astype(mx.float32))
            worst = max(worst, _error(out, _f64(plain.reshape(1, rows, -1))))
            bitwise &= bool(
                mx.array_equal(out, attend(queries, whole, span, rule, gate=gate, block=own))
            )
            row = rows // 2
            cut = [part[:, :, : first + count - rows + row + 1] for part in buffer]
            single = attend(
                queries[:, :, row : row + 1],
                (cut[0], cut[1]),
                mx.array([first, count - rows + row]),
                AttentionRule(dim**-0.5),
                gate=None if gate is None else gate[:, row : row + 1],
            )
            bitwise &= bool(mx.array_equal(single[:, 0], out[:, row]))
        wide = attend(queries, whole, span, AttentionRule(dim**-0.5, False, 100), block=own)
        key = mx.arange(count)[None]
        query = count - rows + mx.arange(rows)[:, None]
        mask = (key >= count - rows) | (query - key < 100)
        plain = mx.fast.scaled_dot_product_attention(
            *(a.astype(mx.float32) for a in (queries, *held)), scale=dim**-0.5, mask=mask
        ).transpose(0, 2, 1, 3)
        worst = max(worst, _error(wide, _f64(plain.reshape(1, rows, -1))))
    wrong = not (0 < worst < 1e-2 and bitwise)
    print(
        f"attention {heads}/{kv_heads} heads of {dim}: error {worst:.1e}, rows bitwise "
        f"{bitwise}{'  WRONG' if wrong else ''}",
        flush=True,
    )
    return int(wrong)


def check_gdn(dtype: mx.Dtype, rows: int) -> int:
    """The recurrence against float64 (from the same convolved inputs), and row by row."""
    arguments: Any = {
        "hidden_size": 256,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_attention_heads": 2,
    }
    layer: Any = GatedDeltaNet(TextModelArgs(**arguments))
    layer.eval()
    layer.conv1d.weight = (mx.random.normal(layer.conv1d.weight.shape) * 0.5).astype(dtype)
    layer.dt_bias = mx.random.normal(layer.dt_bias.shape).astype(dtype)
    layer.A_log = mx.log(mx.random.uniform(0.1, 8.0, layer.A_log.shape))
    qkv = mx.random.normal((1, rows, layer.conv_dim)).astype(dtype)
    window = mx.random.normal((1, 3, layer.conv_dim)).astype(dtype)
    a, b = (mx.random.normal((1, rows, 32)).astype(dtype) for _ in range(2))
    state = mx.random.normal((1, 32, 128, 128))
    kernels = CudaKernels()
    y, after, left = kernels.gdn(layer, (qkv, a, b), window, state)
    if rows <= 40:
        every = kernels.gdn(layer, (qkv, a, b), window, state, every=True)
    expected = _recurrence(layer, qkv, window, a, b, state)
    errors = _error(y, expected[0]), _error(after, expected[1])
    one_state, one_window, bitwise = state, window, True
    for row in range(rows if rows <= 40 else 0):
        at = slice(row, row + 1)
        one, one_state, one_window = kernels.gdn(
            layer, (qkv[:, at], a[:, at], b[:, at]), one_window, one_state
        )
        bitwise &= bool(mx.array_equal(one[:, 0], y[:, row]))
        bitwise &= bool(mx.array_equal(one_state[0], every[1][row]))
        bitwise &= bool(mx.array_equal(one_window, every[2][:, row + 1 : row + 4]))
    if rows <= 40:
        bitwise &= bool(mx.array_equal(one_state, after) and mx.array_equal(one_window, left))
        bitwise &= _begins_inside(layer, (qkv, a, b), every[2], every[1])
    norm_error = _check_norm(kernels, dtype, y)
    bound = 1e-5 if dtype == mx.float32 else 1e-2
    wrong = not (max(*errors, norm_error) < bound and bitwise)
    print(
        f"gdn {dtype} {rows} rows: error y {errors[0]:.1e} state {errors[1]:.1e} norm "
        f"{norm_error:.1e}, rows bitwise {bitwise}{'  WRONG' if wrong else ''}",
        flush=True,
    )
    return int(wrong)


def _begins_inside(
    layer: Any, fed: tuple[mx.array, ...], windows: mx.array, states: mx.array
) -> bool:
    """Rows behind a kept prefix of a block: from its arrays whole as from the prefix cut out."""
    qkv, a, b = fed
    same = True
    for keep in {1, (qkv.shape[1] + 1) // 2, qkv.shape[1]}:
        place = mx.array([3, keep], dtype=mx.int32)
        window, state = windows[:, keep : keep + 3], states[keep - 1 : keep]
        for every in (True, False):
            whole = CudaKernels().gdn(layer, (qkv, a, b), windows, states, every, place)
            cut = CudaKernels().gdn(layer, (qkv, a, b), window, state, every)
            same &= all(bool(mx.array_equal(x, y)) for x, y in zip(whole, cut, strict=True))
    return same


def _check_norm(kernels: CudaKernels, dtype: mx.Dtype, y: mx.array) -> float:
    norm = _norm(y.shape[-1], dtype)
    z = mx.random.normal(y.shape).astype(dtype)
    values, gate = _f64(y), _f64(z)
    scale = 1 / np.sqrt((values**2).mean(-1, keepdims=True) + norm.eps)
    expected = values * scale * _f64(norm.weight) * gate / (1 + np.exp(-gate))
    error = _error(kernels.gated_norm(norm, y, z), expected.reshape(1, y.shape[1], -1))
    if dtype != mx.bfloat16 or y.shape[1] > 16:
        return error
    module: Any = nn.Linear(4096, 64, bias=False)
    module.weight = (mx.random.normal((64, 4096)) / 64).astype(dtype)
    residual = mx.random.normal((1, y.shape[1], 64)).astype(dtype)
    found = kernels.linear_gate_normed(module, y, norm, z, residual)
    before = kernels.linear(module, kernels.gated_norm(norm, y, z), residual)
    last = kernels.linear_gate_normed(module, y[:, -1:], norm, z[:, -1:], residual[:, -1:])
    alone = bool(mx.array_equal(last[:, 0], found[:, -1]))
    return max(error, _error(found, _f64(before)), 0.0 if alone else float("inf"))


def _norm(width: int, dtype: mx.Dtype = mx.bfloat16) -> Any:
    norm: Any = nn.RMSNorm(width, eps=1e-6)
    norm.weight = mx.random.normal((width,)).astype(dtype)
    return norm


def _recurrence(
    layer: Any, qkv: mx.array, window: mx.array, a: mx.array, b: mx.array, state: mx.array
) -> tuple[Any, Any]:
    """(y, state) of the whole layer between its projections, in float64."""
    inputs = np.concatenate([_f64(window), _f64(qkv)], axis=1)[0]
    taps = _f64(layer.conv1d.weight)[:, :, 0]
    rows, heads = qkv.shape[1], 32
    mixed = np.stack([(inputs[t : t + 4].T * taps).sum(1) for t in range(rows)])
    mixed = mixed / (1 + np.exp(-mixed))
    q, k, v = np.split(mixed, [2048, 4096], axis=1)
    q, k = (part.reshape(rows, 16, 128) for part in (q, k))
    q = q / np.sqrt((q**2).sum(-1, keepdims=True) + 1e-6) * 128**-0.5
    k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    q, k, v = q.repeat(2, 1), k.repeat(2, 1), v.reshape(rows, heads, 128)
    raw = _f64(a)[0] + _f64(layer.dt_bias)
    decay = np.exp(-np.exp(_f64(layer.A_log)) * np.logaddexp(raw, 0))
    beta = 1 / (1 + np.exp(-_f64(b)[0]))
    held, out = _f64(state)[0], np.zeros((1, rows, heads, 128))
    for t in range(rows):
        held = held * decay[t][:, None, None]
        delta = (v[t] - np.einsum("hvk,hk->hv", held, k[t])) * beta[t][:, None]
        held = held + delta[:, :, None] * k[t][:, None]
        out[0, t] = np.einsum("hvk,hk->hv", held, q[t])
    return out, held[None]


def _exact(layer: Any, x: mx.array) -> Any:
    weight = layer.weight
    if isinstance(layer, nn.QuantizedLinear):
        weight = mx.dequantize(
            weight, layer.scales.astype(mx.float32), layer.biases.astype(mx.float32), 64, 4
        )
    return _f64(x) @ _f64(weight).T


def _f64(array: mx.array) -> Any:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def _error(array: mx.array, expected: Any) -> float:
    found = _f64(array)
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return error if error == error else float("inf")


if __name__ == "__main__":
    sys.exit(main())
