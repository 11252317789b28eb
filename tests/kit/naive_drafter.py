"""A drafter's forward once more: float64 numpy, one element at a time, whole context kept.

Written from the published layout with loops and no buffers, as the reference that the suite's own
layers are held against. Slow; for a handful of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def as_float64(array: mx.array) -> Array:
    """Read an array from the device."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight)


def rotate(vector: Array, position: int, theta: float) -> Array:
    """Rotary embedding of one head's vector: element i pairs with i + half."""
    half = len(vector) // 2
    out = np.zeros_like(vector)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(vector))
        cos, sin = np.cos(angle), np.sin(angle)
        out[i] = vector[i] * cos - vector[i + half] * sin
        out[i + half] = vector[i + half] * cos + vector[i] * sin
    return out


def is_visible(row: int, key: int, context: int, window: int | None, causal: bool) -> bool:
    """May block row `row` look at key `key` (the context's keys first, then the block's)?"""
    if key < context:
        return window is None or (context + row) - key < window
    return not causal or key - context <= row


def convolve(x: Array, deltas: Array, base: Array, group: int) -> Array:
    """x (T, D), deltas (T, K, G), base (K, D): out[i] = sum of (base + delta) * x[i - t]."""
    out = np.zeros_like(x)
    for i in range(x.shape[0]):
        for channel in range(x.shape[1]):
            for tap in range(base.shape[0]):
                if i >= tap:
                    coefficient = base[tap, channel] + deltas[i, tap, channel // group]
                    out[i, channel] += coefficient * x[i - tap, channel]
    return out


def select(
    hidden: Array, logits: Array, anchor: int, weights: Mapping[str, Array], top_k: int
) -> list[int]:
    """Left to right: logit plus pairwise score, the first of equals in order of falling logit."""
    projected = hidden @ weights["candidate_selector.hidden_projection.weight"].T
    before = weights["candidate_selector.predecessor_codebook"]
    after = weights["candidate_selector.successor_codebook"]
    previous, path = anchor, []
    for row in range(len(hidden)):
        best, best_score = -1, -np.inf
        for token in np.argsort(-logits[row], kind="stable")[:top_k]:
            pair = sum(
                before[previous, r] * projected[row, r] * after[token, r]
                for r in range(before.shape[1])
            )
            if logits[row, token] + pair > best_score:
                best, best_score = int(token), logits[row, token] + pair
        previous = best
        path.append(best)
    return path


class NaiveDrafter:
    """The whole drafter over (vocab, hidden) embedding and head, from config and tensors."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        tensors: Mapping[str, mx.array],
        embed: mx.array,
        head: mx.array,
    ) -> None:
        self.raw = raw
        self.nested: Mapping[str, Any] = raw["dflash_config"]
        self.weights = {name: as_float64(array) for name, array in tensors.items()}
        self.embedding, self.head = as_float64(embed), as_float64(head)

    def hidden(self, taps: Array, position: int, anchor: int, count: int) -> Array:
        """(count, D) of the mask rows; taps (S, taps * D) at positions position - S .. ."""
        ids = [anchor] + [self.nested["mask_token_id"]] * count
        x = self.embedding[ids] * self.nested.get("input_embedding_scale", 1.0)
        context = self._norm("hidden_norm", taps @ self.weights["fc.weight"].T)
        for index in range(self.raw["num_hidden_layers"]):
            x = self._layer(f"layers.{index}", index, x, context, position)
        return self._norm("norm", x[1:])

    def logits(self, hidden: Array) -> Array:
        logits = hidden @ self.head.T * self.nested.get("output_multiplier", 1.0)
        cap = self.nested.get("final_logit_softcapping")
        return logits if cap is None else np.asarray(np.tanh(logits / cap) * cap)

    def draft(self, taps: Array, position: int, anchor: int, count: int) -> list[int]:
        hidden = self.hidden(taps, position, anchor, count)
        logits = self.logits(hidden)
        if "selector_rank" not in self.nested:
            return [int(row.argmax()) for row in logits]
        return select(hidden, logits, anchor, self.weights, self.nested["selector_top_k"])

    def _layer(self, name: str, index: int, x: Array, context: Array, position: int) -> Array:
        normed = self._norm(f"{name}.input_layernorm", x)
        deltas = self._deltas(f"{name}.attention_conv", normed)
        branch = self._conv(f"{name}.attention_conv", normed, deltas, 0)
        branch = self._attention(f"{name}.self_attn", index, branch, context, position)
        x = x + self._conv(f"{name}.attention_conv", branch, deltas, 1)
        normed = self._norm(f"{name}.post_attention_layernorm", x)
        deltas = self._deltas(f"{name}.mlp_conv", normed)
        branch = self._conv(f"{name}.mlp_conv", normed, deltas, 0)
        gate = self._linear(f"{name}.mlp.gate_proj", branch)
        branch = gate / (1 + np.exp(-gate)) * self._linear(f"{name}.mlp.up_proj", branch)
        branch = self._linear(f"{name}.mlp.down_proj", branch)
        return np.asarray(x + self._conv(f"{name}.mlp_conv", branch, deltas, 1))

    def _attention(self, name: str, index: int, x: Array, context: Array, position: int) -> Array:
        heads, kv_heads = self.raw["num_attention_heads"], self.raw["num_key_value_heads"]
        head_dim = self.raw["head_dim"]
        slides = self.raw["layer_types"][index] == "sliding_attention"
        window = self.raw["sliding_window"] if slides else None
        causal = self.raw.get("is_causal", slides)
        rows = np.concatenate([context, x])
        first = position - len(context)
        queries = self._heads(f"{name}.q", x, heads, position)
        keys = self._heads(f"{name}.k", rows, kv_heads, first)
        values = self._linear(f"{name}.v_proj", rows).reshape(len(rows), kv_heads, head_dim)
        out = np.zeros((len(x), heads, head_dim))
        for row in range(len(x)):
            seen = [
                key
                for key in range(len(rows))
                if is_visible(row, key, len(context), window, causal)
            ]
            for head in range(heads):
                kv = head * kv_heads // heads
                scores = np.array(
                    [queries[row, head] @ keys[key, kv] / head_dim**0.5 for key in seen]
                )
                share = np.exp(scores - scores.max())
                share /= share.sum()
                for weight, key in zip(share, seen, strict=True):
                    out[row, head] += weight * values[key, kv]
        return self._linear(f"{name}.o_proj", out.reshape(len(x), -1))

    def _heads(self, name: str, x: Array, heads: int, first: int) -> Array:
        """Projected, normed and rotated: (rows, heads, head_dim)."""
        split = self._linear(f"{name}_proj", x).reshape(len(x), heads, -1)
        split = self._norm(f"{name}_norm", split)
        theta = self.raw["rope_parameters"]["rope_theta"]
        return np.array(
            [[rotate(split[i, h], first + i, theta) for h in range(heads)] for i in range(len(x))]
        )

    def _deltas(self, name: str, x: Array) -> Array:
        """(T, 2, K, G); nothing for DFlash v1, which has no convolutions."""
        if "conv_kernel_size" not in self.nested:
            return np.zeros((0,))
        return self._linear(f"{name}.kernel_projection", x).reshape(
            len(x), 2, self.nested["conv_kernel_size"], -1
        )

    def _conv(self, name: str, x: Array, deltas: Array, plane: int) -> Array:
        if "conv_kernel_size" not in self.nested:
            return x
        base = self.weights[f"{name}.base_kernel"][plane]
        return convolve(x, deltas[:, plane], base, self.nested["conv_group_size"])

    def _linear(self, name: str, x: Array) -> Array:
        out = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else np.asarray(out + bias)

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self.weights[f"{name}.weight"], self.raw["rms_norm_eps"])
