"""DFlash and DFlash2: a whole block of drafts in one forward over tapped hidden states.

Implements core's Drafter Protocol. Embedding and head are the target's own. Sources: the
DFlash paper (arXiv 2602.06036), its reference on PyPI (dflash 0.1.0), and the published files of
z-lab/Qwen3.8-27B-DFlash2.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import mlx.core as mx
import mlx.nn as nn

from ...core.block import Block, StoredBlock, resolve_block
from ...core.decode.choose import Draws
from ...core.decode.drafter import TargetRows
from ...core.decode.sampling import Proposal
from ...core.errors import CacheError
from ...core.options import GenerateOptions, Kernels
from ...core.probe_store import ProbeKey
from .config import DrafterConfig
from .context import ContextBuffer, ContextMark, HeadsOf, join_heads
from .layers import CandidateSelector, Layer, Layer2
from .packed import most_bits

if TYPE_CHECKING:
    from .cuda.draft import FusedDraft


class TargetEnds(Protocol):
    """The two ends of the target that a drafter borrows."""

    @property
    def kernels(self) -> Kernels:
        """Whose kernels the target's passes run through."""

    def embed_token_ids(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden)."""

    def head_logits(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) -> (1, T, vocab) by the bare head: scale and cap are the drafter's."""


class FusedEnds(TargetEnds, Protocol):
    """Those of a target whose passes run through the suite's CUDA kernels."""

    @property
    def embedding_table(self) -> Any | None:
        """The embedding module, where embed_token_ids gives its rows as they stand, else None."""

    @property
    def head_projection(self) -> Any | None:
        """The module that head_logits is all of, else None."""


class DFlashModel(nn.Module):
    """The weights: `fc`, `hidden_norm`, layers, `norm`, and DFlash2's selector."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width = config.hidden_size
        layer_class = Layer if config.selector is None else Layer2
        self.fc = nn.Linear(len(config.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.layers = [layer_class(config, index) for index in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        if config.selector is not None:
            self.candidate_selector = CandidateSelector(config)


class DFlashDrafter:
    """One loaded drafter bound to one target, with the context of one sequence; `session` gives
    another context over the same weights."""

    def __init__(
        self, model: DFlashModel, config: DrafterConfig, ends: TargetEnds, rope: nn.Module
    ) -> None:
        self.model = model
        self.config = config
        self.stored: StoredBlock | None = None  # by a probe on this device, where there is one
        self._ends = ends
        self._rope = rope
        self._dtype: mx.Dtype = model.norm.weight.dtype
        self._position = 0
        self._buffers: list[ContextBuffer] = []
        groups = window_groups(model)
        self._fused = _fused(self, groups) if ends.kernels == "fused" else None
        self._groups = groups if self._fused else [[index] for index in self._indices]
        self.reset(0)

    @property
    def name(self) -> str:
        """`dflash` or `dflash2`."""
        return self.config.kind

    @property
    def max_positions(self) -> int:
        """Positions that it was made for."""
        return self.config.max_position_embeddings

    @property
    def bits(self) -> int:
        """Bits a weight of most of its projections' weights: 16 where these are not packed."""
        return most_bits(self.model)

    def probe_key(self, key: ProbeKey) -> ProbeKey | None:
        """The key of what a probe of its target with this drafter is stored under."""
        return key.with_drafter(self.config.path, self.bits)

    def block(self, options: GenerateOptions) -> Block:
        """What --block-size asks for, else by a stored probe or the trained block; --draft-tokens
        is not its concern."""
        return resolve_block(self.config.block_size, options.block_size, self.stored)

    @property
    def tap_ids(self) -> tuple[int, ...]:
        """Target layers to tap, in the file's order."""
        return self.config.target_layer_ids

    @property
    def context_rows(self) -> int | None:
        """Trailing rows that matter; None where a layer sees everything."""
        return self.config.context_rows

    @property
    def position(self) -> int:
        """Absolute position of the next row to observe, which is the anchor's."""
        return self._position

    @property
    def context_lengths(self) -> list[int]:
        """Context rows held by each layer."""
        held = {i: b.rows for some, b in self._grouped() for i in some}
        return [held[index] for index in self._indices]

    def context_bytes(self, tokens: int) -> int:
        """Of the keys and values that its layers hold after so many tokens."""
        return sum(buffer.bytes_for(tokens) for buffer in self._buffers)

    def session(self) -> Self:
        """The same weights, with an empty context of its own."""
        made = copy.copy(self)
        made.reset(0)
        return made

    def reset(self, position: int) -> None:
        """An empty context; positions stay true, so RoPE is right after a gap."""
        config = self.config
        self._position = position
        heads, layers = config.num_key_value_heads, self.model.layers
        self._buffers = [
            ContextBuffer(
                len(some) * heads, config.head_dim, layers[some[0]].self_attn.window, self._dtype
            )
            for some in self._groups
        ]

    def observe(self, rows: TargetRows) -> None:
        """Project the taps of committed rows into every layer's context.

        Raises CacheError for rows without taps, or that do not follow the last ones.
        """
        if rows.taps is None or rows.position != self._position:
            found = "no taps" if rows.taps is None else f"rows from {rows.position}"
            raise CacheError(
                f"{self.name} context diverged: it stands at {self._position}, got {found}; reset "
                "it to the rows' position"
            )
        if self._fused is not None and rows.taps.shape[1] <= self._fused.max_rows:
            self._fused.observe(rows.taps, self._position, self._buffers)
            self._position += rows.taps.shape[1]
            return
        fused = self.model.hidden_norm(self.model.fc(rows.taps.astype(self._dtype)))
        for some, buffer in self._grouped():
            attentions = [self.model.layers[index].self_attn for index in some]
            made = [a.keys_values(fused, self._rope, self._position) for a in attentions]
            keys, values = zip(*made, strict=True)
            buffer.append(join_heads(keys), join_heads(values))
        self._position += rows.taps.shape[1]

    def mark(self, *, lasting: bool = False) -> ContextMark:
        """The position: rows behind it can simply be dropped, but for windows that slide on, of
        which a lasting mark has copies."""
        held = tuple(buffer.hold() for buffer in self._buffers) if lasting else ()
        return ContextMark(self._position, held)

    def return_to(self, mark: object) -> None:
        """Drop the rows observed since."""
        if not isinstance(mark, ContextMark) or mark.position > self._position:
            raise CacheError(
                f"{self.name} cannot go back to this {type(mark).__name__}: it is not a mark of "
                f"this context, which stands at {self._position}"
            )
        for index, buffer in enumerate(self._buffers):
            held = mark.windows[index] if mark.windows else None
            if held is None:
                buffer.drop(self._position - mark.position)
            else:
                buffer.put(held)
        self._position = mark.position

    def fork(self, mark: object) -> Self:
        """The same weights, with a copy of the context at a lasting mark."""
        made = copy.copy(self)
        made._buffers = [buffer.fork() for buffer in self._buffers]
        made.return_to(mark)
        for buffer in made._buffers:
            buffer.compact()
        return made

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """Block = [anchor, mask x count] in one forward; drafts come from the mask rows."""
        if self._fused is not None and count < self._fused.max_rows:
            return self._fused.draft(anchor, count, self._position, self._buffers)
        hidden = self.block_hidden(anchor, count)
        logits = self.block_logits(hidden)
        if self.config.selector is None:
            return mx.argmax(logits[0], axis=-1)
        return self.model.candidate_selector(hidden, logits, anchor)

    def propose(self, anchor: mx.array, count: int, draws: Draws) -> Proposal:
        """DFlash: each row drawn from its own distribution (dense). DFlash2: the path is drawn
        candidate by candidate (sparse, over the selector's top-k)."""
        hidden = self.block_hidden(anchor, count)
        logits = self.block_logits(hidden)
        if self.config.selector is None:
            return draws.propose(logits[0])
        return self.model.candidate_selector.propose(hidden, logits, anchor, draws)

    def block_hidden(self, anchor: mx.array, count: int) -> mx.array:
        """(1, count, hidden): the mask rows after the final norm."""
        masks = mx.full((count,), self.config.mask_token_id, dtype=anchor.dtype)
        ids = mx.concatenate([anchor, masks])[None]
        residual = self._ends.embed_token_ids(ids).astype(mx.float32)
        residual = residual * self.config.input_embedding_scale
        for index, layer in enumerate(self.model.layers):
            residual = layer(residual, self._rope, self._position, self._context(index))
        hidden: mx.array = mx.fast.rms_norm(
            residual[:, 1:], self.model.norm.weight.astype(mx.float32), self.model.norm.eps
        ).astype(self._dtype)
        return hidden

    def block_logits(self, hidden: mx.array) -> mx.array:
        """(1, count, vocab) by the target's head, then the file's multiplier and soft cap."""
        logits = self._ends.head_logits(hidden)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else mx.tanh(logits / cap) * cap

    @property
    def _indices(self) -> range:
        """Of the layers."""
        return range(len(self.model.layers))

    def _grouped(self) -> Iterator[tuple[list[int], ContextBuffer]]:
        """Each buffer with the layers whose context it holds."""
        return zip(self._groups, self._buffers, strict=True)

    def _context(self, index: int) -> ContextBuffer | HeadsOf:
        """A layer's own context."""
        some, buffer = next(one for one in self._grouped() if index in one[0])
        heads = self.config.num_key_value_heads
        return buffer if len(some) == 1 else HeadsOf(buffer, some.index(index) * heads, heads)

    def state(self) -> list[mx.array]:
        """The context buffers."""
        return [array for buffer in self._buffers for array in buffer.arrays()]


def window_groups(model: DFlashModel) -> list[list[int]]:
    """The layers by how far they see: contexts of one length fit in one buffer."""
    groups: dict[int | None, list[int]] = {}
    for index, layer in enumerate(model.layers):
        groups.setdefault(layer.self_attn.window, []).append(index)
    return list(groups.values())


def _fused(drafter: DFlashDrafter, groups: list[list[int]]) -> FusedDraft | None:
    """The same drafter over the suite's CUDA kernels, where they take its sizes and types."""
    from .cuda.draft import DraftEnds, FusedDraft, can_fuse  # only here: it imports mlx-lm

    if not can_fuse(drafter.model, drafter.config, drafter._rope):
        return None
    ends, config = cast(FusedEnds, drafter._ends), drafter.config
    is_bare = config.output_multiplier == 1.0 and config.final_logit_softcapping is None
    borrowed = DraftEnds(
        ends.embed_token_ids,
        drafter.block_logits,
        ends.embedding_table,
        ends.head_projection if is_bare else None,
    )
    return FusedDraft(drafter.model, drafter.config, groups, borrowed, drafter._rope)
