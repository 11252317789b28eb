"""How the target's logits become the round's tokens: greedy, or lossless sampling.

One object a request. Penalties and bias are mlx-lm's own processors, applied to each row with the
tokens that plain decoding would have had before it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..errors import OptionError
from ..sampling_options import SamplingOptions
from .accept import accept_prefix
from .sampling import Proposal, accept_or_resample, draw, target_probs

WIDEST_WINDOW = 2**31 - 1
"""MLX slices by 32-bit numbers; no text is as long."""
Processor = Callable[[mx.array, mx.array], mx.array]


class Draws:
    """The randomness of one request: a chain of keys from one seed, and the options."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        seed = secrets.randbits(64) if options.seed is None else options.seed
        self._key = mx.random.key(seed)

    def key(self) -> mx.array:
        """A key that was never used before."""
        self._key, fresh = mx.random.split(self._key)
        return fresh

    def propose(self, logits: mx.array) -> Proposal:
        """Dense proposal: each row of (k, vocab) logits drawn on its own, as the target draws."""
        probs = target_probs(logits, self.options)
        return Proposal(draw(probs, self.key()), probs)


@dataclass(frozen=True)
class Judged:
    """The target's word on one block, still on the device.

    Greedy: `choices` (T,), its token after each row. Sampling: `accepted` (1,) drafts are kept
    and `token` (1,) follows them.
    """

    choices: mx.array | None = None
    accepted: mx.array | None = None
    token: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """What the host has to read for `tokens`."""
        held = (self.choices, self.accepted, self.token)
        return [array for array in held if array is not None]

    def tokens(self, drafts: Sequence[int], read: Sequence[Sequence[int]]) -> list[int]:
        """The round's tokens before cuts: kept drafts, then the target's own. read: `arrays`."""
        if self.choices is not None:
            return accept_prefix(drafts, read[0])
        accepted, token = read
        return [*drafts[: accepted[0]], *token]


class Chooser:
    """Greedy unless the options say otherwise."""

    def __init__(
        self, options: SamplingOptions, vocab_size: int, processors: Sequence[Processor] = ()
    ) -> None:
        """processors: further mlx-lm logits processors, called as (token ids, (1, vocab)).

        `reach` is how many tokens before a row `judge` looks at: 0 for none, None for all.
        """
        check_bias(options, vocab_size)
        self.options = options
        self.draws = None if options.greedy else Draws(options)
        self._processors = [*make_processors(options), *processors]
        self.reach = None if processors else penalty_reach(options)

    @property
    def is_stateless(self) -> bool:
        """Whether a token follows from its logits alone: greedy, with no processor."""
        return self.draws is None and not self._processors

    def judge(
        self, logits: mx.array, row_ids: mx.array, history: mx.array, proposal: Proposal | None
    ) -> Judged:
        """logits (T, vocab) of the block row_ids (T,), which follows `history` (n,); lazy."""
        if self._processors:
            tokens = mx.concatenate([history.astype(row_ids.dtype), row_ids])
            logits = self._processed(logits, tokens)
        if self.draws is None:
            return Judged(choices=greedy(logits))
        probs = target_probs(logits, self.options)
        if proposal is None:
            return Judged(
                accepted=mx.zeros((1,), mx.int32), token=draw(probs[-1:], self.draws.key())
            )
        accepted, token = accept_or_resample(probs[None], proposal.batched(), self.draws.key())
        return Judged(accepted=accepted, token=token)

    def _processed(self, logits: mx.array, tokens: mx.array) -> mx.array:
        """Each row as plain decoding would process it, with the tokens up to that row."""
        rows, start = logits.shape[0], tokens.shape[0] - logits.shape[0]
        processed = []
        for row in range(rows):
            one = logits[row : row + 1]
            for processor in self._processors:
                one = processor(tokens[: start + row + 1], one)
            processed.append(one)
        return mx.concatenate(processed)


def greedy(logits: mx.array) -> mx.array:
    """(T, vocab) -> (T,) ids, by mlx-lm's own expression: argmax of log-probabilities in the
    logits' dtype, where rounding can make ties that plain logits do not have."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.argmax(logprobs, axis=-1)


def check_bias(options: SamplingOptions, vocab_size: int) -> None:
    """OptionError for a biased id outside the vocabulary: mlx would write out of bounds."""
    outside = [token for token, _ in options.logit_bias if token >= vocab_size]
    if outside:
        raise OptionError(
            f"logit_bias names token {outside[0]}, which is outside the target's vocabulary of "
            f"{vocab_size}"
        )


def penalty_reach(options: SamplingOptions) -> int:
    """How many tokens back from a row the penalties look; a bias looks at none."""
    on = (
        options.repetition_penalty != 1,
        options.presence_penalty != 0,
        options.frequency_penalty != 0,
    )
    return options.penalty_window if any(on) else 0


def make_processors(options: SamplingOptions) -> list[Processor]:
    """mlx-lm's processors for the options that are set."""
    from mlx_lm.sample_utils import make_logits_processors

    window = min(options.penalty_window, WIDEST_WINDOW)
    processors: list[Processor] = make_logits_processors(
        logit_bias=dict(options.logit_bias) or None,
        repetition_penalty=options.repetition_penalty if options.repetition_penalty != 1 else None,
        repetition_context_size=window,
        presence_penalty=options.presence_penalty or None,
        presence_context_size=window,
        frequency_penalty=options.frequency_penalty or None,
        frequency_context_size=window,
    )
    return processors
