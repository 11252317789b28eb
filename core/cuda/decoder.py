"""A hybrid target's decoder over few rows, with fused kernels and few launches.

The layers between two attention calls form one segment, traced once for each row count and
replayed by `mx.compile`, so that the host does not rebuild a thousand operations a pass. What
depends on the number of keys, attention and its cache, stays outside. One sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention

from ..cache.layer_caches import cut_of, put
from ..cache.recurrent import Cut, Held
from ..device import start_on_gpu
from .ops.attention import prepare
from .ops.layers import (
    HEADS,
    SPLIT,
    Chain,
    add_attention_end,
    add_attention_inputs,
    add_gdn_layer,
    add_mlp,
    attend_gated,
    is_dense,
    run_attention,
)
from .ops.reference_ops import OpKernels
from .runtime.steps import Given, turn
from .segments import Segment, split_segments

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class FusedTape:
    """What a verified block leaves of one layer, so that any kept prefix is another cut of it.

    rows: T; left: the cut that keeps them all, as the block left it in the cache.
    """

    rows: int
    left: Cut


class FusedDecoder:
    """Runs rows through the layers of one hybrid body (layers, norm), and replays a block."""

    def __init__(self, layers: Sequence[Any], norm: Any, kernels: OpKernels, compile: Compile):
        self.kernels = kernels
        self._layers = layers
        self._norm = norm
        self._segments = split_segments([layer.is_linear for layer in layers])
        self._passes = {
            record: [compile(partial(self._segment, segment, record)) for segment in self._segments]
            for record in (False, True)
        }
        self._attention = compile(run_attention)
        self._attention_apart = compile(attend_gated)
        self._fits: dict[tuple[int, mx.Dtype], bool] = {}

    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[FusedTape | None]]:
        """Embedded rows (1, T, hidden) -> (hidden after the final norm, taps, tapes), as the
        backbone's own run, and the caches advanced."""
        rows = hidden.shape[1]
        outputs: dict[int, mx.array] = {}
        tapes: list[FusedTape | None] = [None] * len(self._layers)
        mixed: list[mx.array] = []
        keep, held = self._held(cache, rows, hidden.dtype)
        span = self.kernels.numbers([0, self._position(cache), keep])
        place, token = span[1:], turn().token
        for segment, run in zip(self._segments, self._passes[record], strict=True):
            states = [held[index] for index in segment.gdn]
            hidden, after, gdn, token = run(hidden, mixed, states, (place, token))
            if segment.before is not None:
                outputs[segment.before] = gdn[-1][-1]
            for index, made in zip(segment.gdn, gdn, strict=False):
                window, state, outputs[index] = made
                left = Cut(window, state, rows) if record else (window, state)
                put(cache[index], left)
                cache[index].advance(rows)
                if isinstance(left, Cut):
                    tapes[index] = FusedTape(rows, left)
            if segment.after is not None:
                mixed, token = self._attend(segment.after, after, cache[segment.after], span, token)
                start_on_gpu(mixed)  # the device begins while the host builds the rest
        turn().token = token
        return hidden, [outputs[index] for index in tap_ids], tapes

    def gdn_rows(self, gdn: Any, x: mx.array, entry: Any) -> mx.array:
        """One GDN module over many normed rows, not traced: (1, T, hidden) -> (1, T, hidden)."""
        window, state = self._state(gdn, entry, x.dtype)
        qkv, z, a, b = self._project(gdn, x)
        y, state, window = self.kernels.gdn(gdn, (qkv, a, b), window, state)
        entry[0], entry[1] = window, state
        entry.advance(x.shape[1])
        out: mx.array = gdn.out_proj(gdn.norm(y, z).reshape(1, x.shape[1], -1))
        return out

    def replay(self, tapes: Sequence[FusedTape | None], keep: int) -> list[Held | None]:
        """Per layer the cut after the first `keep` rows, None for attention layers; bitwise what
        feeding them gives, and no array is made: the next pass begins inside the block's."""
        return [
            None if tape is None else Cut(tape.left.windows, tape.left.states, keep)
            for tape in tapes
        ]

    def _held(
        self, cache: Sequence[Any], rows: int, dtype: mx.Dtype
    ) -> tuple[int, dict[int, tuple[mx.array, mx.array]]]:
        """(rows kept of the last block, per GDN layer its windows and states), or (0, each window
        and state): where caches hold arrays, or cuts that differ. A block of another width is cut
        here, since each pair of widths would be a trace of its own."""
        indices = [index for segment in self._segments for index in segment.gdn]
        cuts = {index: cut_of(cache[index]) for index in indices}
        held = {i: (c.windows, c.states) for i, c in cuts.items() if c and c.rows == rows}
        keeps = {cut.keep for cut in cuts.values() if cut is not None}
        if len(held) == len(indices) and len(keeps) == 1:
            return keeps.pop(), held
        layers = {index: self._layers[index].linear_attn for index in indices}
        return 0, {i: self._state(layer, cache[i], dtype) for i, layer in layers.items()}

    def _state(self, layer: Any, entry: Any, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """(window, state) of a GDN layer's cache; zeros before the first row."""
        window, state = entry[0], entry[1]
        if window is None:
            window = mx.zeros((1, layer.conv_kernel_size - 1, layer.conv_dim), dtype=dtype)
        if state is None:
            shape = (1, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
            state = mx.zeros(shape, dtype=mx.float32)
        return window, state

    def _position(self, cache: Sequence[Any]) -> int:
        """Absolute position of the next row, as the attention layers have it."""
        attention = (s.after for s in self._segments if s.after is not None)
        index = next(attention, None)
        return 0 if index is None else int(cache[index].offset)

    def _segment(
        self,
        segment: Segment,
        record: bool,
        hidden: mx.array,
        mixed: list[mx.array],
        states: list[Any],
        passed: tuple[mx.array, mx.array],
    ) -> tuple[mx.array, list[mx.array], list[Any], mx.array]:
        """passed: the place, and the token of the launch before. Returns
        (hidden, what attention needs next, per GDN layer what the cache and tape need and the
        layer's output, token); the last entry of the list is the output of `before` where there
        is one."""
        place, token = passed
        chain = Chain.over(hidden, token, self.kernels.packs)
        named: list[list[Given]] = []
        first: list[list[Given]] = []
        if segment.before is not None:
            first = [[self._end(chain, segment.before, mixed)]]
        for index, (window, state) in zip(segment.gdn, states, strict=True):
            named.append(self._gdn(chain, index, window, state, record, place))
        inputs: Sequence[Given] = []
        if segment.after is not None:
            inputs = self._inputs(chain, segment.after, place)
        hidden = chain.launch()
        made = [[chain.found(one) for one in some] for some in named + first]
        if segment.after is None:
            hidden = self._norm(hidden)
        return hidden, [chain.found(one) for one in inputs], made, chain.token

    def _gdn(
        self,
        chain: Chain,
        index: int,
        window: mx.array,
        state: mx.array,
        record: bool,
        place: mx.array,
    ) -> list[Given]:
        """One GDN layer: its windows and states, and the hidden rows behind it."""
        layer, kernels = self._layers[index], self.kernels
        if kernels.joins(layer, chain.rows, chain.dtype):
            names = add_gdn_layer(chain, layer, window, state, record, place)
            return [*names, self._mlp(chain, index)]
        gdn, hidden = layer.linear_attn, chain.launch()
        qkv, z, a, b = self._project(gdn, hidden, layer.input_layernorm)
        y, state, window = kernels.gdn(gdn, (qkv, a, b), window, state, record, place)
        chain.hidden = kernels.linear_gate_normed(gdn.out_proj, y, gdn.norm, z, hidden)
        return [window, state, self._mlp(chain, index)]

    def _end(self, chain: Chain, index: int, mixed: list[mx.array]) -> Given:
        """An attention layer from its attention on: the hidden rows behind it."""
        layer = self._layers[index]
        x = mixed[0] if len(mixed) == 1 else mixed[0] * mx.sigmoid(mixed[1])
        if self.kernels.joins(layer, chain.rows, chain.dtype):
            add_attention_end(chain, layer, x)
        else:
            chain.hidden = self.kernels.linear(layer.self_attn.o_proj, x, chain.launch())
        return self._mlp(chain, index)

    def _mlp(self, chain: Chain, index: int) -> Given:
        """The end of every layer: the rows behind it."""
        layer, kernels = self._layers[index], self.kernels
        norm, mlp = layer.post_attention_layernorm, layer.mlp
        if kernels.joins(layer, chain.rows, chain.dtype):
            add_mlp(chain, layer)
            return chain.keep() if kernels.shares(layer) else chain.launch()
        hidden = chain.launch()
        if is_dense(mlp):
            gated = kernels.gated(mlp.gate_proj, mlp.up_proj, hidden, norm)
            hidden = kernels.linear(mlp.down_proj, gated, hidden)
        else:
            hidden = hidden + mlp(norm(hidden))
        chain.hidden = hidden
        return hidden

    def _inputs(self, chain: Chain, index: int, place: mx.array) -> Sequence[Given]:
        """What the attention of layer `index` needs, as `_attention_inputs`."""
        layer = self._layers[index]
        if not self.kernels.joins(layer, chain.rows, chain.dtype):
            return self._attention_inputs(layer, chain.launch(), place)
        return add_attention_inputs(chain, layer, place)

    def _project(
        self, gdn: Any, x: mx.array, norm: Any = None
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """(qkv, z, a, b) of norm(x) from either layout, as `core/target/gated_delta.py` has it."""
        rows = x.shape[1]
        if hasattr(gdn, "in_proj_qkvz"):
            q, k, v, z, b, a = gdn.fix_query_key_value_ordering(
                *self.kernels.several((gdn.in_proj_qkvz, gdn.in_proj_ba), x, norm=norm)
            )
            flat = [part.reshape(1, rows, -1) for part in (q, k, v)]
            return mx.concatenate(flat, axis=-1), z, a, b
        modules = [getattr(gdn, part) for part in SPLIT]
        qkv, z, a, b = self.kernels.several(modules, x, (0, gdn.num_v_heads, 0, 0), norm)
        return qkv, z, a, b

    def _attention_inputs(self, layer: Any, hidden: mx.array, position: mx.array) -> list[mx.array]:
        """[queries, keys, values (1, heads, T, D), gate]: with positions and the gate still packed
        with the queries where attention is fused, else without and (1, T, heads * D)."""
        attention = layer.self_attn
        rows = hidden.shape[1]
        modules = [getattr(attention, part) for part in HEADS]
        kv_heads = attention.num_key_value_heads
        packed, keys, values = self.kernels.several(
            modules,
            hidden,
            (attention.num_attention_heads, kv_heads, kv_heads),
            layer.input_layernorm,
        )
        if self._is_fused(attention, rows, hidden.dtype):
            ready = prepare(attention, attention.rope, (packed, keys, values), position)
            return [*ready, packed]
        queries, gate = mx.split(packed, 2, axis=-1)
        heads = [attention.q_norm(queries), attention.k_norm(keys), values]
        return [*(array.transpose(0, 2, 1, 3) for array in heads), gate.reshape(1, rows, -1)]

    def _is_fused(self, attention: Any, rows: int, dtype: mx.Dtype) -> bool:
        """Asked twice a layer and pass, so that the answer is kept; layers are of one kind."""
        if (rows, dtype) not in self._fits:
            fits = self.kernels.fits_attention(attention, attention.rope, rows, dtype)
            self._fits[rows, dtype] = fits
        return self._fits[rows, dtype]

    def _attend(
        self, index: int, inputs: list[mx.array], entry: Any, span: mx.array, token: mx.array
    ) -> tuple[list[mx.array], mx.array]:
        """Append to the cache and attend: ([output (1, T, heads * D)], then its gate where that is
        not applied yet; token)."""
        queries, keys, values, gate = inputs
        attention, rows = self._layers[index].self_attn, queries.shape[2]
        if self._is_fused(attention, rows, queries.dtype):
            entry.update_and_fetch(keys, values)
            context, scale = (entry.keys, entry.values), float(attention.scale)
            if self.kernels.joins(self._layers[index], rows, queries.dtype):
                out, token = self._attention(queries, context, span, gate, token, scale)
                return [out], token
            return [self._attention_apart(queries, context, span, gate, scale)], token
        mask = create_attention_mask(gate, entry)
        queries = attention.rope(queries, offset=entry.offset)
        keys = attention.rope(keys, offset=entry.offset)
        keys, values = entry.update_and_fetch(keys, values)
        out = scaled_dot_product_attention(
            queries, keys, values, cache=entry, scale=attention.scale, mask=mask
        )
        return [out.transpose(0, 2, 1, 3).reshape(1, rows, -1), gate], token
