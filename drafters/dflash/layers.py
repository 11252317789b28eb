"""The modules of a DFlash drafter, named as its tensors are.

Shapes: B = 1, T = block rows, D = hidden, S = context rows. The residual stream is float32:
the output projections overflow float16 on outlier channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx
import mlx.nn as nn

from ...core.checkpoint.rope_modules import build_rope
from ...core.decode.choose import Draws
from ...core.decode.sampling import Proposal, draw, tempered
from ...core.device import on_cuda
from ...core.errors import ConfigError, described
from .config import DrafterConfig, SelectorConfig
from .context import ContextBuffer, HeadsOf


class DrafterAttention(nn.Module):
    """Block rows attend to the context and to the block; head_dim is the file's own."""

    def __init__(self, config: DrafterConfig, index: int) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.attention_bias
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.window = (
            config.sliding_window if config.layer_types[index] == "sliding_attention" else None
        )
        self.causal = config.is_layer_causal(index)
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, x: mx.array, rope: nn.Module, offset: int) -> tuple[mx.array, mx.array]:
        """(1, n, D) rows at positions offset.. -> keys and values (1, kv heads, n, head_dim)."""
        keys = self.k_norm(self._heads(self.k_proj(x), self.kv_heads)).transpose(0, 2, 1, 3)
        values = self._heads(self.v_proj(x), self.kv_heads).transpose(0, 2, 1, 3)
        return rope(keys, offset=offset), values

    def __call__(
        self, x: mx.array, rope: nn.Module, offset: int, context: ContextBuffer | HeadsOf
    ) -> mx.array:
        """(1, T, D) block rows at positions offset.. -> (1, T, D)."""
        rows = x.shape[1]
        queries = self.q_norm(self._heads(self.q_proj(x), self.heads)).transpose(0, 2, 1, 3)
        queries = rope(queries, offset=offset)
        keys, values = self.keys_values(x, rope, offset)
        mask = block_mask(rows, context.rows, self.window, self.causal)
        if on_cuda():  # cuDNN plans anew for every number of keys: give it few of them
            keys, values, live = context.whole_with_block(keys, values)
            mask = mask_outside(mask, rows, live, keys.shape[2])
        else:
            keys, values = context.with_block(keys, values)
        out = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.head_dim**-0.5, mask=mask
        )
        projected: mx.array = self.o_proj(out.transpose(0, 2, 1, 3).reshape(1, rows, -1))
        return projected

    def _heads(self, x: mx.array, heads: int) -> mx.array:
        return x.reshape(1, x.shape[1], heads, self.head_dim)


def block_mask(rows: int, context_rows: int, window: int | None, causal: bool) -> mx.array | None:
    """(T, S + T), True where a block row may look; None where it may look everywhere.

    Context row j is visible to block row t iff (S + t) - j < window; the window never cuts
    inside the block. Causal rows see only block rows up to their own.
    """
    if not causal and (window is None or context_rows + rows <= window):
        return None
    query = context_rows + mx.arange(rows)[:, None]
    key = mx.arange(context_rows + rows)[None]
    in_block = key >= context_rows
    in_context = key < context_rows
    if window is not None:
        in_context = in_context & (query - key < window)
    if causal:
        in_block = in_block & (key <= query)
    return in_context | in_block


def mask_outside(mask: mx.array | None, rows: int, live: slice, count: int) -> mx.array:
    """(T, count) for a buffer of which only the rows `live` count; mask: for those (T, n)."""
    if mask is None:
        mask = mx.ones((rows, live.stop - live.start), dtype=mx.bool_)
    return mx.pad(mask, [(0, 0), (live.start, count - live.stop)])


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One DFlash layer; the residual is float32, branches run in the weights' dtype."""

    def __init__(self, config: DrafterConfig, index: int) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config, index)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, residual: mx.array, rope: nn.Module, offset: int, context: ContextBuffer | HeadsOf
    ) -> mx.array:
        x = normed(self.input_layernorm, residual)
        residual = residual + self.self_attn(x, rope, offset, context).astype(mx.float32)
        x = normed(self.post_attention_layernorm, residual)
        return residual + self.mlp(x).astype(mx.float32)


class GroupedDynamicConv(nn.Module):
    """Causal convolution inside the block whose taps are a base plus a projected delta.

    base_kernel: (2, K, D), plane 0 before and plane 1 after the branch; tap 0 is the row itself,
    tap t the row t back, zero before the block. The delta is shared by groups of channels.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        selector = selector_of(config)
        self.kernel_size = selector.conv_kernel_size
        self.groups = config.hidden_size // selector.conv_group_size
        self.base_kernel = mx.zeros((2, self.kernel_size, config.hidden_size))
        self.kernel_projection = nn.Linear(
            config.hidden_size, 2 * self.kernel_size * self.groups, bias=False
        )

    def deltas(self, x: mx.array) -> mx.array:
        """(1, T, D) normed rows -> (1, T, 2, K, G)."""
        flat: mx.array = self.kernel_projection(x)
        return flat.reshape(1, x.shape[1], 2, self.kernel_size, self.groups, 1)

    def convolve(self, x: mx.array, deltas: mx.array, plane: int) -> mx.array:
        """out[i] = sum over t of (base[plane, t] + delta[i, plane, t]) * x[i - t]."""
        rows, width = x.shape[1], x.shape[2]
        blocks = x.reshape(1, rows, self.groups, -1)
        base = self.base_kernel[plane].reshape(self.kernel_size, self.groups, -1).astype(x.dtype)
        out = mx.zeros_like(blocks)
        for tap in range(min(self.kernel_size, rows)):
            past = mx.pad(blocks[:, : rows - tap], [(0, 0), (tap, 0), (0, 0), (0, 0)])
            out = out + base[tap] * past
            out = out + deltas[:, :, plane, tap] * past
        return out.reshape(1, rows, width)


class Layer2(Layer):
    """A DFlash2 layer: each branch is wrapped in a dynamic convolution."""

    def __init__(self, config: DrafterConfig, index: int) -> None:
        super().__init__(config, index)
        self.attention_conv = GroupedDynamicConv(config)
        self.mlp_conv = GroupedDynamicConv(config)

    def __call__(
        self, residual: mx.array, rope: nn.Module, offset: int, context: ContextBuffer | HeadsOf
    ) -> mx.array:
        x = normed(self.input_layernorm, residual)
        deltas = self.attention_conv.deltas(x)
        x = self.self_attn(self.attention_conv.convolve(x, deltas, 0), rope, offset, context)
        residual = residual + self.attention_conv.convolve(x, deltas, 1).astype(mx.float32)
        x = normed(self.post_attention_layernorm, residual)
        deltas = self.mlp_conv.deltas(x)
        x = self.mlp(self.mlp_conv.convolve(x, deltas, 0))
        return residual + self.mlp_conv.convolve(x, deltas, 1).astype(mx.float32)


class CandidateSelector(nn.Module):
    """Top-k candidates a row, chosen left to right with a learned pairwise score.

    The codebooks are bare arrays of (vocab, rank), as they stand in the file, or packed tables.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        selector = selector_of(config)
        rank = selector.selector_rank
        self.top_k = selector.selector_top_k
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self.predecessor_codebook = mx.zeros((config.vocab_size, rank))
        self.successor_codebook = mx.zeros((config.vocab_size, rank))

    def __call__(self, hidden: mx.array, logits: mx.array, anchor: mx.array) -> mx.array:
        """hidden (1, T, D) after the final norm, logits (1, T, V), anchor (1,) -> ids (T,).

        Candidates are in order of falling logit, so a tie of scores goes to the likelier one.
        """
        candidates = self._candidates(logits)
        steps = self._walk(hidden, candidates, anchor, lambda scores: mx.argmax(scores))
        return mx.concatenate([ids for ids, _ in steps])

    def propose(
        self, hidden: mx.array, logits: mx.array, anchor: mx.array, draws: Draws
    ) -> Proposal:
        """As a call, but each step is drawn at the temperature alone, given the step before it."""
        temperature = draws.options.temperature
        candidates = self._candidates(logits)
        steps = list(
            self._walk(
                hidden,
                candidates,
                anchor,
                lambda scores: draw(tempered(scores, temperature), draws.key()),
            )
        )
        probs = mx.stack([tempered(scores, temperature) for _, scores in steps])
        return Proposal(mx.concatenate([ids for ids, _ in steps]), probs, candidates[0])

    def _candidates(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """(T, k) ids and their float32 logits, in order of falling logit."""
        ids = mx.argpartition(logits[0], -self.top_k, axis=-1)[:, -self.top_k :]
        unary = mx.take_along_axis(logits[0], ids, axis=-1).astype(mx.float32)
        order = mx.argsort(-unary, axis=-1)
        return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(unary, order, axis=-1)

    def _walk(
        self,
        hidden: mx.array,
        candidates: tuple[mx.array, mx.array],
        anchor: mx.array,
        choose: Callable[[mx.array], mx.array],
    ) -> Iterator[tuple[mx.array, mx.array]]:
        """Left to right: (chosen id (1,), scores (k,)) of each row; choose: scores -> index."""
        ids, unary = candidates
        projected = self.hidden_projection(hidden)[0]
        # (T, k, rank): the part of the score that does not depend on the predecessor.
        edges = projected[:, None] * rows_of(self.successor_codebook, ids)
        previous = anchor
        for row in range(hidden.shape[1]):
            pair = (rows_of(self.predecessor_codebook, previous) * edges[row]).astype(mx.float32)
            scores = unary[row] + pair.sum(axis=-1)
            previous = ids[row][choose(scores)[None]]
            yield previous, scores


def selector_of(config: DrafterConfig) -> SelectorConfig:
    """DFlash2's own settings. Raises ConfigError for a DFlash v1 config, which has none."""
    if config.selector is None:
        raise ConfigError(f"{config.file}: DFlash v1 has neither convolutions nor a selector")
    return config.selector


def rows_of(codebook: mx.array | nn.Module, ids: mx.array) -> mx.array:
    """(..., rank) rows of a codebook; of a packed one only these rows are unpacked."""
    rows: mx.array = codebook[ids] if isinstance(codebook, mx.array) else codebook(ids)
    return rows


def normed(norm: nn.RMSNorm, residual: mx.array) -> mx.array:
    """RMS norm of the float32 residual, in the weights' dtype from here on."""
    return mx.fast.rms_norm(residual, norm.weight.astype(mx.float32), norm.eps).astype(
        norm.weight.dtype
    )


def make_rope(config: DrafterConfig) -> nn.Module:
    """Full-width rotary embedding with the file's own base and scaling.

    Raises ConfigError where it cannot be built.
    """
    try:
        return build_rope(config.rope, config.head_dim, config.max_position_embeddings)
    except (ValueError, ArithmeticError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"{config.file}: no rope can be built of {config.rope} ({described(exc)}); "
            "fetch config.json again"
        ) from exc
