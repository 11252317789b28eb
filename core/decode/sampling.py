"""Lossless speculative sampling: pure functions over probabilities on the device.

Accept draft x with probability min(1, p(x)/q(x)); at the first refusal draw from the residual
max(p - q, 0), renormalised; with every draft accepted draw from p at the last row (Leviathan et
al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). p is what plain decoding would draw from:
mlx-lm's own filters in mlx-lm's order, then the temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..sampling_options import SamplingOptions

TINY_TOP_P = 1e-5
"""Below it a sum over a vocabulary in float32 cannot tell the share from nothing, and mlx-lm's
filter would leave no token at all; the likeliest one remains."""
TINY_TEMPERATURE = 1e-7
"""Below it two scores that differ in float32 differ by so much that the lesser has no chance."""


@dataclass(frozen=True)
class Proposal:
    """Draft ids (..., k) and the distribution that each was drawn from.

    probs None: the drafts are certain (q is one-hot), as greedy drafters propose.
    candidates None: probs is dense, (..., k, vocab). Else both are (..., k, m).
    """

    ids: mx.array
    probs: mx.array | None = None
    candidates: mx.array | None = None

    def dense(self, vocab_size: int) -> mx.array:
        """q as (..., k, vocab) float32."""
        if self.probs is not None and self.candidates is None:
            return self.probs.astype(mx.float32)
        columns = self.ids[..., None] if self.candidates is None else self.candidates
        values = mx.ones(columns.shape) if self.probs is None else self.probs.astype(mx.float32)
        zeros = mx.zeros((*self.ids.shape, vocab_size))
        return mx.put_along_axis(zeros, columns, values, axis=-1)

    def batched(self) -> Proposal:
        """One block (k, ...) as a batch of one (1, k, ...)."""
        return Proposal(
            self.ids[None],
            None if self.probs is None else self.probs[None],
            None if self.candidates is None else self.candidates[None],
        )


def join_steps(steps: Sequence[Proposal]) -> Proposal:
    """Single drafts (1,), certain or dense, as one proposal."""
    probs = [step.probs for step in steps if step.probs is not None]
    ids = mx.concatenate([step.ids for step in steps])
    return Proposal(ids, mx.concatenate(probs) if probs else None)


def target_probs(logits: mx.array, options: SamplingOptions) -> mx.array:
    """(T, vocab) logits -> float32 probabilities that plain decoding draws from.

    Filters act on log-probabilities before the temperature, top-p then min-p then top-k, which
    is mlx-lm's order.
    """
    from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

    scores = logits.astype(mx.float32)
    scores = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    if options.top_p < TINY_TOP_P:
        scores = _likeliest(scores)
    elif options.top_p < 1.0:
        scores = apply_top_p(scores, options.top_p)
    if options.min_p > 0.0:
        scores = apply_min_p(scores, options.min_p)
    if 0 < options.top_k < scores.shape[-1]:
        scores = apply_top_k(scores, options.top_k)
    return tempered(scores, options.temperature)


def tempered(scores: mx.array, temperature: float) -> mx.array:
    """(..., n) scores -> probabilities at a temperature above 0, however small."""
    if temperature < TINY_TEMPERATURE:  # a quotient would be beyond float32
        return mx.softmax(_likeliest(scores), axis=-1)
    return mx.softmax(scores / temperature, axis=-1)


def _likeliest(scores: mx.array) -> mx.array:
    """The largest scores of each row, all others impossible."""
    return mx.where(scores == scores.max(axis=-1, keepdims=True), scores, -mx.inf)


def draw(probs: mx.array, key: mx.array) -> mx.array:
    """(..., n) probabilities -> indices (...)."""
    return mx.random.categorical(mx.log(probs), key=key)


def accept_or_resample(
    probs: mx.array, proposal: Proposal, key: mx.array
) -> tuple[mx.array, mx.array]:
    """(accepted (B,), token (B,)) of B independent blocks; lazy.

    probs: (B, k + 1, vocab), row i is the target's distribution after row i. The draws that
    accept and the draws that resample use different keys: with one key the residual would be drawn
    by the very number that refused the draft, and the distribution would not be the target's.
    """
    count, vocab_size = proposal.ids.shape[1], probs.shape[-1]
    accept_key, resample_key = mx.random.split(key)
    legal = (proposal.ids >= 0) & (proposal.ids < vocab_size)
    chosen = mx.where(legal, proposal.ids, 0)[..., None]
    q = Proposal(chosen[..., 0], proposal.probs, proposal.candidates).dense(vocab_size)
    p_chosen = mx.take_along_axis(probs[:, :count], chosen, axis=-1)[..., 0]
    q_chosen = mx.take_along_axis(q, chosen, axis=-1)[..., 0]
    uniform = mx.random.uniform(shape=q_chosen.shape, key=accept_key)
    kept = (uniform * q_chosen < p_chosen) & legal
    accepted = mx.cumprod(kept.astype(mx.int32), axis=-1).sum(axis=-1)
    # Past the last draft q is zero, so that the residual there is the target's own row.
    q = mx.concatenate([mx.where(legal[..., None], q, 0), mx.zeros_like(probs[:, :1])], axis=1)
    at = accepted[:, None, None]
    row = mx.take_along_axis(probs, at, axis=1)[:, 0]
    residual = mx.maximum(row - mx.take_along_axis(q, at, axis=1)[:, 0], 0)
    total = residual.sum(axis=-1, keepdims=True)
    residual = mx.where(total > 0, residual / mx.maximum(total, 1e-30), row)
    return accepted, draw(residual, resample_key)
