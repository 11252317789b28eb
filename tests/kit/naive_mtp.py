"""An MTP head once more: float64 numpy, whole context kept, from numbered experts and HF norms.

Written from the published layout as the reference that the suite's head is held to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np

from tests.kit.naive_drafter import Array, as_float64, rms_norm, rotate

HEADS, KV_HEADS, HEAD_DIM, ROTARY, THETA = 4, 2, 16, 4, 100000.0


class NaiveHead:
    """tensors: bare HF names, norms less one; embedding and head: (vocab, hidden)."""

    def __init__(
        self, tensors: Mapping[str, mx.array], embedding: mx.array, head: mx.array, top_k: int = 2
    ) -> None:
        self.weights = {name: as_float64(array) for name, array in tensors.items()}
        self.embedding, self.head = as_float64(embedding), as_float64(head)
        self.top_k = top_k

    def chain(
        self, hidden: Array, ids: Sequence[int], count: int, start: int = 0, pre: bool = False
    ) -> list[int]:
        """Drafts after pairs (hidden[i], ids[i]) at positions start + i; the last id is the
        anchor. `pre`: chain on the rows before the head's norm."""
        rows, tokens, drafts = list(hidden), list(ids), []
        for _ in range(count):
            raw = self._forward(np.array(rows), tokens, start)
            normed = self._norm("norm", raw[-1])
            drafts.append(int(np.argmax(self.head @ normed)))
            rows.append(raw[-1] if pre else normed)
            tokens.append(drafts[-1])
        return drafts

    def _forward(self, hidden: Array, ids: Sequence[int], start: int) -> Array:
        embedded = self._norm("pre_fc_norm_embedding", self.embedding[list(ids)])
        pair = np.concatenate([embedded, self._norm("pre_fc_norm_hidden", hidden)], axis=-1)
        x = pair @ self.weights["fc.weight"].T
        x = x + self._attention(self._norm("layers.0.input_layernorm", x), start)
        normed = self._norm("layers.0.post_attention_layernorm", x)
        return np.asarray(x + np.array([self._mlp(row) for row in normed]))

    def _attention(self, x: Array, start: int) -> Array:
        name = "layers.0.self_attn."
        both = (x @ self.weights[f"{name}q_proj.weight"].T).reshape(len(x), HEADS, 2 * HEAD_DIM)
        queries, gate = both[..., :HEAD_DIM], both[..., HEAD_DIM:]
        keys = (x @ self.weights[f"{name}k_proj.weight"].T).reshape(len(x), KV_HEADS, HEAD_DIM)
        values = (x @ self.weights[f"{name}v_proj.weight"].T).reshape(len(x), KV_HEADS, HEAD_DIM)
        queries = self._turn(self._norm(f"{name}q_norm", queries), start)
        keys = self._turn(self._norm(f"{name}k_norm", keys), start)
        out = np.zeros_like(queries)
        for row in range(len(x)):
            for head in range(HEADS):
                kv = head * KV_HEADS // HEADS
                scores = keys[: row + 1, kv] @ queries[row, head] / HEAD_DIM**0.5
                share = np.exp(scores - scores.max())
                out[row, head] = (share / share.sum()) @ values[: row + 1, kv]
        gated = out / (1 + np.exp(-gate))
        return np.asarray(gated.reshape(len(x), -1) @ self.weights[f"{name}o_proj.weight"].T)

    def _turn(self, x: Array, start: int) -> Array:
        turned = x.copy()
        for row in range(x.shape[0]):
            for head in range(x.shape[1]):
                turned[row, head, :ROTARY] = rotate(x[row, head, :ROTARY], start + row, THETA)
        return turned

    def _mlp(self, x: Array) -> Array:
        base = "layers.0.mlp."
        if f"{base}gate.weight" not in self.weights:
            return self._swiglu(base, x)
        scores = self.weights[f"{base}gate.weight"] @ x
        share = np.exp(scores - scores.max())
        share /= share.sum()
        best = np.argsort(-share)[: self.top_k]
        routed = sum(
            share[e] / share[best].sum() * self._swiglu(f"{base}experts.{e}.", x) for e in best
        )
        gate = 1 / (1 + np.exp(-(self.weights[f"{base}shared_expert_gate.weight"] @ x)))
        return np.asarray(routed + gate * self._swiglu(f"{base}shared_expert.", x))

    def _swiglu(self, base: str, x: Array) -> Array:
        gate = self.weights[f"{base}gate_proj.weight"] @ x
        inner = gate / (1 + np.exp(-gate)) * (self.weights[f"{base}up_proj.weight"] @ x)
        return np.asarray(self.weights[f"{base}down_proj.weight"] @ inner)

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, 1.0 + self.weights[f"{name}.weight"], 1e-6)
