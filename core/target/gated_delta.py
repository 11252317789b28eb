"""One Gated DeltaNet layer, called over mlx-lm's own submodules so that it can leave a tape.

The arithmetic is mlx-lm's, operation by operation (models/qwen3_5.py and qwen3_next.py, 0.32.2);
`forward_check.py` holds the logits bitwise equal at load. No padding, one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk


@dataclass(frozen=True)
class GdnRows:
    """What T rows feed to one layer's recurrence.

    q, k: (1, T, key heads, key dim); v: (1, T, value heads, value dim); a, b: (1, T, value heads).
    """

    q: mx.array
    k: mx.array
    v: mx.array
    a: mx.array
    b: mx.array

    def part(self, start: int, stop: int) -> GdnRows:
        """The rows from `start` to before `stop`."""
        parts = (array[:, start:stop] for array in (self.q, self.k, self.v, self.a, self.b))
        return GdnRows(*parts)


@dataclass(frozen=True)
class GdnTape:
    """A verified block of one layer.

    fed: its rows; conv_input: (1, kernel - 1 + T, channels), the old window and the block's rows;
    state_in: the state before the block; conv_out, state_out: what the block left in the cache,
    by which a rollback knows that the cache has not moved since.
    """

    fed: GdnRows
    conv_input: mx.array
    state_in: mx.array | None
    conv_out: mx.array
    state_out: mx.array

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return int(self.fed.q.shape[1])

    @property
    def left(self) -> tuple[mx.array, mx.array]:
        """What the block left in the cache."""
        return self.conv_out, self.state_out


def gdn_forward(
    layer: Any, x: mx.array, cache: Any, *, record: bool
) -> tuple[mx.array, GdnTape | None]:
    """Run one layer on x (1, T, hidden) and advance its cache; the tape only where asked for."""
    batch, rows, _ = x.shape
    qkv, z, b, a = _project(layer, x)
    conv_state = cache[0]
    if conv_state is None:
        conv_state = mx.zeros((batch, layer.conv_kernel_size - 1, layer.conv_dim), dtype=x.dtype)
    conv_input = mx.concatenate([conv_state, qkv], axis=1)
    conv_out = mx.contiguous(conv_input[:, -(layer.conv_kernel_size - 1) :, :])
    fed = GdnRows(*convolve(layer, conv_input, rows), a, b)
    state_in = cache[1]
    out, state_out = recur(layer, fed, state_in)
    cache[0], cache[1] = conv_out, state_out
    cache.advance(rows)
    out = layer.out_proj(layer.norm(out, z).reshape(batch, rows, -1))
    if not record:
        return out, None
    return out, GdnTape(fed, conv_input, state_in, conv_out, state_out)


def replay(layer: Any, tape: GdnTape, keep: int) -> tuple[mx.array, mx.array]:
    """(convolution window, state) as if only the block's first `keep` rows had been fed.

    Runs the recurrence over those rows alone, through the same call as the forward, so that the
    result is bitwise that of feeding them.
    """
    _, state = recur(layer, tape.fed.part(0, keep), tape.state_in)
    window = tape.conv_out.shape[1]
    return mx.contiguous(tape.conv_input[:, keep : keep + window]), state


def _project(layer: Any, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """(qkv, z, b, a) from either layout: separate (Qwen3.5) or packed (Qwen3-Next) projections."""
    batch, rows, _ = x.shape
    if hasattr(layer, "in_proj_qkvz"):
        q, k, v, z, b, a = layer.fix_query_key_value_ordering(
            layer.in_proj_qkvz(x), layer.in_proj_ba(x)
        )
        flat = [part.reshape(batch, rows, -1) for part in (q, k, v)]
        return mx.concatenate(flat, axis=-1), z, b, a
    z = layer.in_proj_z(x).reshape(batch, rows, layer.num_v_heads, layer.head_v_dim)
    return layer.in_proj_qkv(x), z, layer.in_proj_b(x), layer.in_proj_a(x)


def convolve(layer: Any, conv_input: mx.array, rows: int) -> tuple[mx.array, mx.array, mx.array]:
    """Causal depthwise convolution, split into heads; q and k are L2-normalised."""
    batch = conv_input.shape[0]
    mixed = nn.silu(layer.conv1d(conv_input))
    q, k, v = mx.split(mixed, [layer.key_dim, 2 * layer.key_dim], axis=-1)
    q = q.reshape(batch, rows, layer.num_k_heads, layer.head_k_dim)
    k = k.reshape(batch, rows, layer.num_k_heads, layer.head_k_dim)
    v = v.reshape(batch, rows, layer.num_v_heads, layer.head_v_dim)
    q, k = normalize_qk(q, k, inv_scale=layer.head_k_dim**-0.5, eps=1e-6)
    return q, k, v


def recur(layer: Any, fed: GdnRows, state: mx.array | None) -> tuple[mx.array, mx.array]:
    """The gated delta rule over the rows; state None means zeros."""
    q, k, v, a, b = fed.q, fed.k, fed.v, fed.a, fed.b
    out, state = gated_delta_update(
        q, k, v, a, b, layer.A_log, layer.dt_bias, state, None, use_kernel=not layer.training
    )
    return out, state
