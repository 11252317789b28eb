"""The target's own MTP head as a drafter: one layer, chained token by token.

Implements core's Drafter Protocol. Embedding and lm_head are the target's, the layer is made of
mlx-lm's own modules. Sources: multi-token prediction in the DeepSeek-V3 report (arXiv 2412.19437,
section 2.2), and the heads that Qwen/Qwen3.5 and Qwen/Qwen3-Next ship under `mtp.` names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

import mlx.core as mx
import mlx.nn as nn

from ...core.block import Block, StoredBlock, resolve_chain
from ...core.checkpoint.mlx_models import model_module
from ...core.decode.choose import Draws
from ...core.decode.drafter import TargetRows
from ...core.decode.sampling import Proposal, join_steps
from ...core.errors import CacheError
from ...core.options import GenerateOptions, MtpHidden
from ...core.probe_store import ProbeKey
from .context import HeadCache, HeadMark


class SharedEnds(Protocol):
    """The target's embedding and lm_head, which the head shares."""

    def embed_token_ids(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden)."""

    def logits_from_hidden(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) -> (1, T, vocab)."""


class MtpLayer(nn.Module):
    """One full-attention decoder layer of the target's family, dense or MoE."""

    def __init__(self, args: Any, moe: bool) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        family: Any = model_module("qwen3_next")
        self.self_attn: Any = family.Qwen3NextAttention(args)
        self.mlp: Any = (
            family.Qwen3NextSparseMoeBlock(args)
            if moe
            else family.Qwen3NextMLP(args.hidden_size, args.intermediate_size)
        )

    def attend(self, x: mx.array, cache: HeadCache) -> mx.array:
        """(1, T, hidden) -> (1, T, hidden), the attention branch; its keys go into `cache`."""
        mask = model_module("base").create_attention_mask(x, cache)
        out: mx.array = self.self_attn(self.input_layernorm(x), mask, cache)
        return out

    def __call__(self, x: mx.array, cache: HeadCache) -> mx.array:
        x = x + self.attend(x, cache)
        out: mx.array = x + self.mlp(self.post_attention_layernorm(x))
        return out


class MtpModel(nn.Module):
    """The weights: two input norms, `fc`, one layer, `norm`."""

    def __init__(self, args: Any, moe: bool) -> None:
        super().__init__()
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = [MtpLayer(args, moe)]
        self.norm = nn.RMSNorm(width, eps=eps)

    def fuse(self, embedded: mx.array, hidden: mx.array) -> mx.array:
        """(1, T, hidden) each, the embedding first -> (1, T, hidden)."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        fused: mx.array = self.fc(mx.concatenate(pair, axis=-1))
        return fused


class MtpDrafter:
    """One loaded head bound to one target, with the context of one sequence; `session` gives
    another context over the same weights.

    Pair (h_i, t_i+1) sits at position i. The last hidden row stays pending until its token is
    known: the anchor. Rows made from the head's own output are dropped after the draft; those of
    kept drafts are fed again from the target's hidden rows.
    """

    name = "mtp"

    def __init__(
        self,
        model: MtpModel,
        ends: SharedEnds,
        hidden: MtpHidden = "post",
        last_layer: int = 0,
        dtype: mx.Dtype = mx.bfloat16,
    ) -> None:
        """last_layer: index of the target's last decoder layer, whose output is the hidden row
        before the final norm; dtype: compute dtype of the head."""
        self.model = model
        self.hidden = hidden
        self.stored: StoredBlock | None = None  # by a probe on this device, where there is one
        self.place: Path | None = None  # where it was read from, and the files that a change of
        self.files: tuple[Path, ...] = ()  # the head would change
        self._ends = ends
        self._dtype = dtype
        self._tap_ids = () if hidden == "post" else (last_layer,)
        self._width = int(model.norm.weight.shape[0])
        self.reset(0)

    def probe_key(self, key: ProbeKey) -> ProbeKey | None:
        """The key of what a probe of its target with this head is stored under."""
        return None if self.place is None else key.with_head(self.place, self.hidden, self.files)

    def block(self, options: GenerateOptions) -> Block:
        """The anchor and --draft-tokens drafts, else by a stored probe or 3; --block-size concerns
        DFlash alone."""
        return resolve_chain(options.draft_tokens, self.stored)

    @property
    def tap_ids(self) -> tuple[int, ...]:
        """Nothing, or the last layer where the hidden rows come from before the norm."""
        return self._tap_ids

    @property
    def context_rows(self) -> int | None:
        """The head attends to every row."""
        return None

    @property
    def position(self) -> int:
        """Absolute position of the next row to observe, which is the anchor's."""
        return self._position

    def context_bytes(self, tokens: int) -> int:
        """Of the head's keys and values after so many tokens."""
        attention = self.model.layers[0].self_attn
        row = int(attention.num_key_value_heads) * int(attention.head_dim)
        return 2 * tokens * row * self._dtype.size

    def session(self) -> Self:
        """The same weights, with an empty context of its own."""
        made = copy.copy(self)
        made.reset(0)
        return made

    def reset(self, position: int) -> None:
        """An empty context; after a gap the first pair has a zero hidden row."""
        self._position = position
        self._cache = HeadCache(max(0, position - 1))
        self._pending = mx.zeros((1, 1, self._width), dtype=self._dtype) if position else None
        self._anchor_fed = False

    def observe(self, rows: TargetRows) -> None:
        """Feed the pairs of committed rows: keys and values only, lazily."""
        given = rows.hidden if self.hidden == "post" else rows.taps
        if rows.position != self._position or given is None:
            found = "no taps" if given is None else f"rows from {rows.position}"
            raise CacheError(
                f"{self.name} context diverged: it stands at {self._position}, got {found}; reset "
                "it to the rows' position"
            )
        source = given.astype(self._dtype)
        hidden, ids = source[:, :-1], rows.token_ids
        if self._pending is None or self._anchor_fed:
            ids = ids[1:]  # the first row's own pair is there already, or has no hidden row
        else:
            hidden = mx.concatenate([self._pending, hidden], axis=1)
        if ids.shape[0]:
            fused = self.model.fuse(self._embed(ids), hidden)
            self.model.layers[0].attend(fused, self._cache)
        self._pending = source[:, -1:]
        self._anchor_fed = False
        self._position += source.shape[1]

    def mark(self, *, lasting: bool = False) -> HeadMark:
        """Rows held, and the hidden row that waits for its token; lasting: not as a part of the
        rows around it."""
        pending = self._pending
        if lasting and pending is not None:
            pending = mx.contiguous(pending)
        return HeadMark(self._position, self._cache.rows, pending, self._anchor_fed)

    def return_to(self, mark: object) -> None:
        """Drop the rows fed since."""
        if not isinstance(mark, HeadMark) or mark.rows > self._cache.rows:
            raise CacheError(
                f"{self.name} cannot go back to this {type(mark).__name__}: it is not a mark of "
                f"this context, which holds {self._cache.rows} rows"
            )
        self._cache.trim(self._cache.rows - mark.rows)
        self._position, self._pending = mark.position, mark.pending
        self._anchor_fed = mark.anchor_fed

    def fork(self, mark: object) -> Self:
        """The same weights, with a copy of the context at the mark."""
        made = copy.copy(self)
        made._cache = self._cache.fork()
        made.return_to(mark)
        made._cache.compact()
        return made

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """A chain of `count` steps; the first is fed the pending hidden row and the anchor."""
        return self._chain(anchor, count, lambda logits: Proposal(mx.argmax(logits, axis=-1))).ids

    def propose(self, anchor: mx.array, count: int, draws: Draws) -> Proposal:
        """The chain drawn token by token, each from its own distribution (dense)."""
        return self._chain(anchor, count, draws.propose)

    def _chain(
        self, anchor: mx.array, count: int, choose: Callable[[mx.array], Proposal]
    ) -> Proposal:
        """choose: (1, vocab) logits -> one draft."""
        if self._anchor_fed:
            self._cache.trim(1)
        known = self._pending
        hidden = mx.zeros((1, 1, self._width), dtype=self._dtype) if known is None else known
        token, steps = anchor, []
        for _ in range(count):
            fused = self.model.fuse(self._embed(token), hidden)
            raw = self.model.layers[0](fused, self._cache)
            normed = self.model.norm(raw)
            steps.append(choose(self._ends.logits_from_hidden(normed)[0]))
            token = steps[-1].ids
            hidden = normed if self.hidden == "post" else raw
        self._anchor_fed = known is not None
        self._cache.trim(count - int(self._anchor_fed))
        return join_steps(steps)

    def state(self) -> list[mx.array]:
        """The head's buffers and the pending row."""
        pending = [] if self._pending is None else [self._pending]
        return [*self._cache.arrays(), *pending]

    def _embed(self, ids: mx.array) -> mx.array:
        return self._ends.embed_token_ids(ids[None]).astype(self._dtype)
