"""A loaded target: forward with taps and tape, embeddings, logits, rollback.

One sequence at a time. Knows nothing of drafters, prompts or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..cache.kinds import require_kind, require_list_kind
from ..cache.layer_caches import can_drop, drop_rows, offset_of
from ..cache.tape import Tape, check_counts, replay_tape
from ..checkpoint.target_config import TargetConfig
from ..device import on_cpu, read_ids
from ..errors import CacheError, ExternalMask, RollbackError, UnsupportedCache
from ..options import Kernels
from .backbones import Backbone


@dataclass(frozen=True)
class TargetPass:
    """One forward over T rows.

    hidden: (1, T, hidden) after the final norm; taps: (1, T, len(tap_ids) * hidden), the outputs
    of the tapped layers side by side, None where nothing is tapped; tape: None unless recorded.
    """

    hidden: mx.array
    taps: mx.array | None
    tape: Tape | None


class Target:
    """The model whose text is decoded, with its configuration and end-of-sequence ids."""

    def __init__(self, backbone: Backbone, config: TargetConfig) -> None:
        self.backbone = backbone
        self.config = config
        self._gdn_layers = backbone.gdn_layers()
        self._recurrent = [layer is not None for layer in self._gdn_layers]

    @property
    def kernels(self) -> Kernels:
        """Whose kernels run its passes: `stock`, MLX's, or `fused`, the suite's for CUDA."""
        return self.backbone.kernels

    @property
    def independent_rows(self) -> int | None:
        """Widest pass whose rows are independent of one another by construction; None where
        nothing but a measurement can tell."""
        return self.backbone.independent_rows

    @property
    def rollback_leaves_work(self) -> bool:
        """Whether a rollback leaves arrays to compute, which may be started at once."""
        return self.backbone.rollback_leaves_work

    @property
    def widest(self) -> int | None:
        """Most rows that a verify pass may have; None: any number."""
        return None

    @property
    def can_queue(self) -> bool:
        """Whether a plain step may be queued behind one whose id is not read yet."""
        return True

    @property
    def can_share_rows(self) -> bool:
        """Whether a request may go on with the rows of the one before it."""
        return True

    @property
    def is_hybrid(self) -> bool:
        """True where some layers are recurrent, so that a rollback must replay."""
        return self.backbone.cache_kind == "Hybrid"

    @property
    def compute_dtype(self) -> mx.Dtype:
        """The dtype of the residual stream after the final norm.

        A mxfp4 or nvfp4 embedding gives bfloat16 rows whatever the norms are in.
        """
        embedded = self.embed_token_ids(mx.array([[0]]))
        return mx.result_type(embedded, self.backbone.body.norm.weight)

    def make_cache(self, rows: int | None = None) -> list[Any]:
        """A fresh cache, one entry per layer.

        rows: most tokens that it will have to hold; these caches grow, and need no bound.
        """
        return self.backbone.make_cache()

    def embed_token_ids(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden), scaled as the target scales them."""
        return self.backbone.embed(token_ids)

    @property
    def embedding_table(self) -> Any | None:
        """The embedding module, where embed_token_ids gives its rows as they stand, else None."""
        return self.backbone.embedding_table

    @property
    def head_projection(self) -> Any | None:
        """The module that head_logits is all of, else None."""
        return self.backbone.head_projection

    def logits_from_hidden(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) after the final norm -> (1, T, vocab), as the target itself has them."""
        return self.backbone.logits(hidden)

    def head_logits(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) -> (1, T, vocab) by the target's head alone, with no soft cap of its own:
        what a drafter scales and caps by its own config.json."""
        return self.backbone.head(hidden)

    def forward_with_taps(
        self,
        token_ids: mx.array,
        cache: Sequence[Any],
        tap_ids: Sequence[int] = (),
        mask: mx.array | None = None,
    ) -> TargetPass:
        """Feed (1, T) ids and advance `cache`; tap i is the OUTPUT of decoder layer i.

        Raises UnsupportedCache for a cache of another kind, ExternalMask where a mask is given,
        CacheError for tap ids outside the layers; the cache is untouched then.
        """
        self._check("forward_with_taps", token_ids, cache, tap_ids, mask)
        return self._forward(token_ids, cache, tap_ids, record=False)

    def forward_with_taps_tape(
        self,
        token_ids: mx.array,
        cache: Sequence[Any],
        tap_ids: Sequence[int] = (),
        mask: mx.array | None = None,
    ) -> TargetPass:
        """As forward_with_taps, and record the tape that a rollback replays.

        Hybrid targets only: a KV cache is rolled back by trimming and needs no tape.
        """
        self._require_hybrid("forward_with_taps_tape")
        self._check("forward_with_taps_tape", token_ids, cache, tap_ids, mask)
        return self._forward(token_ids, cache, tap_ids, record=True)

    def replay_tape_rollback(
        self, cache: Sequence[Any], tape: Tape, n_accepted: int, kv_rollback: int
    ) -> None:
        """Keep the block's first `n_accepted` rows: replay GDN layers, trim KV layers.

        Raises RollbackError or UnsupportedCache, with the cache bitwise as it was.
        """
        self._require_hybrid("replay_tape_rollback")
        require_list_kind(cache, "Hybrid")
        replay_tape(self._gdn_layers, cache, tape, n_accepted, kv_rollback, self.backbone.replay)

    def verify_rows(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int]
    ) -> TargetPass:
        """The loop's forward: with a tape where a rollback of these rows would need one."""
        if self.is_hybrid and token_ids.shape[1] > 1:
            return self.forward_with_taps_tape(token_ids, cache, tap_ids)
        return self.forward_with_taps(token_ids, cache, tap_ids)

    def block_ids(self, anchor: mx.array, drafts: mx.array) -> mx.array:
        """(1 + k,) ids of a verify pass: the anchor (1,) and drafts (k,). A draft outside the
        vocabulary is fed as a legal id and can never be accepted."""
        return self.backbone.block_ids(anchor, drafts, self.config.vocab_size)

    def start_reading(self, arrays: Sequence[mx.array]) -> Callable[[], list[list[int]]]:
        """Queue vectors of ids that the host needs; the function waits for them, in their order."""
        return self.backbone.start_reading(arrays)

    def rollback(self, cache: Sequence[Any], tape: Tape | None, keep: int, drop: int) -> None:
        """Keep the last block's first `keep` rows and forget its other `drop` rows.

        Replays for hybrids, trims for KV caches; full acceptance (drop 0) does nothing.
        """
        check_counts(keep, drop)
        if drop == 0:
            return
        if self.is_hybrid:
            if tape is None:
                raise RollbackError("a Hybrid cache is rolled back by its block's tape; got none")
            self.replay_tape_rollback(cache, tape, keep, drop)
            return
        require_kind(cache, "KV", self._recurrent)
        for index, layer in enumerate(cache):
            offset = offset_of(layer)
            if offset is None or offset < keep + drop or not can_drop(layer, drop):
                raise RollbackError(
                    f"layer {index} ({type(layer).__name__}, {offset} tokens) cannot drop {drop}"
                )
        for layer in cache:
            drop_rows(layer, drop)

    def _forward(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> TargetPass:
        offset_init = max((offset_of(layer) or 0) for layer in cache)
        hidden, taps, tapes = self.backbone.run(token_ids, cache, tap_ids, record)
        tape = Tape(token_ids.shape[1], offset_init, tuple(tapes)) if record else None
        joined = self.backbone.join_taps(taps) if taps else None
        return TargetPass(hidden, joined, tape)

    def _require_hybrid(self, name: str) -> None:
        if not self.is_hybrid:
            raise UnsupportedCache(
                f"{name} requires a Hybrid target and a Hybrid cache, got "
                f"{self.config.model_type}, whose KV cache is rolled back by trimming"
            )

    def _check(
        self,
        name: str,
        token_ids: mx.array,
        cache: Sequence[Any],
        tap_ids: Sequence[int],
        mask: mx.array | None,
    ) -> None:
        if mask is not None:
            raise ExternalMask(
                f"{name} takes no external attention mask: the target builds its own causal mask"
            )
        require_kind(cache, self.backbone.cache_kind, self._recurrent)
        if token_ids.ndim != 2 or token_ids.shape[0] != 1 or token_ids.shape[1] == 0:
            raise CacheError(f"{name} takes ids of shape (1, T), got {token_ids.shape}")
        require_ids(name, token_ids, self.config.vocab_size)
        layers = len(self.backbone.layers)
        outside = [tap for tap in tap_ids if not 0 <= tap < layers]
        if outside:
            raise CacheError(
                f"{name}: taps {outside} are outside the target's layers 0..{layers - 1} (taps "
                "count from 0 and mean a layer's output)"
            )


def require_ids(name: str, token_ids: mx.array, vocab_size: int) -> None:
    """CacheError for ids that are no integers, and, where reading them costs nothing, for ids
    outside the vocabulary: on a CPU, which would read another's memory for them."""
    if not mx.issubdtype(token_ids.dtype, mx.integer):
        raise CacheError(f"{name} takes integer ids, got {token_ids.dtype}")
    if on_cpu():
        outside = [one for one in read_ids(token_ids[0]) if not 0 <= one < vocab_size]
        if outside:
            raise CacheError(
                f"{name}: id {outside[0]} is outside the target's vocabulary of {vocab_size}"
            )
