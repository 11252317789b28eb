"""A target's forward over mlx-lm's submodules, one small class per kind of decoder.

Each runs the decoder layers itself, so that taps and tape can be read without touching the loaded
model. No lm_head here unless asked for: prompt rows never pay for it. Which model_type uses which
class stands in `families.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import make_prompt_cache

from ..cache.kinds import CacheKind
from ..cache.layer_caches import class_of, window_of
from ..cache.make import own_caches
from ..cache.recurrent import GdnCache, Held
from ..device import start_reading
from ..errors import UnsupportedModel
from ..options import Kernels
from .gated_delta import GdnTape, gdn_forward, replay


class Backbone(ABC):
    """The parts of one loaded mlx-lm model that decoding needs.

    kernels: whose run the passes, by its name in options and probes; rollback_leaves_work: arrays
    that the device may begin with before the next draft asks for them.
    """

    cache_kind: CacheKind
    kernels: Kernels = "stock"
    rollback_leaves_work = True

    def __init__(self, model: Any) -> None:
        self.model = model
        self.text = getattr(model, "language_model", model)
        self.body = self.text.model

    @property
    def independent_rows(self) -> int | None:
        """Widest pass whose rows are independent of one another by construction; None where
        nothing but a measurement can tell."""
        return None

    @property
    def stock(self) -> Backbone:
        """The same model through mlx-lm's modules alone."""
        return self

    @property
    def layers(self) -> Sequence[Any]:
        """The decoder layers, in order."""
        layers: Sequence[Any] = self.model.layers
        return layers

    def make_cache(self) -> list[Any]:
        """A fresh cache, one entry per layer; layers that share keys and values have none."""
        return own_caches(make_prompt_cache(self.model))

    def require_rollback(self, where: object) -> None:
        """Raise UnsupportedModel where a layer's cache is of a class that no rollback knows."""
        for index, entry in enumerate(self.make_cache()):
            if not class_of(entry).rolls_back:
                raise UnsupportedModel(
                    f"{where}: layer {index} uses a {type(entry).__name__}, which cannot be rolled "
                    "back; a target may have full, sliding and Gated DeltaNet layers only"
                )

    def gdn_layers(self) -> list[Any | None]:
        """The GDN module behind each entry of the cache, None for attention layers."""
        return [None] * len(self.layers)

    def replay(self, tapes: Sequence[Any], keep: int) -> Sequence[Held | None]:
        """Per layer what its cache holds after a block's first `keep` rows; None where there is no
        tape."""
        return [
            None if tape is None else replay(layer, tape, keep)
            for layer, tape in zip(self.gdn_layers(), tapes, strict=True)
        ]

    def embed(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden), as the target's first layer gets them."""
        embedded: mx.array = self.body.embed_tokens(token_ids)
        return embedded

    @property
    def embedding_table(self) -> Any | None:
        """The embedding module where `embed` is nothing but its rows, None where it scales them."""
        return self.body.embed_tokens if type(self).embed is Backbone.embed else None

    @property
    def head_projection(self) -> Any | None:
        """The module that `head` is all of, None where nobody needs to know."""
        return None

    def block_ids(self, anchor: mx.array, drafts: mx.array, vocab: int) -> mx.array:
        """(1 + k,): what a verify pass is fed, the anchor (1,) and drafts (k,), each in the
        vocabulary."""
        legal = mx.clip(drafts, 0, vocab - 1)
        return mx.concatenate([anchor, legal.astype(anchor.dtype)])

    def start_reading(self, arrays: Sequence[mx.array]) -> Callable[[], list[list[int]]]:
        """Queue vectors of ids that the host needs; the function waits for them."""
        return start_reading(arrays)

    def join_taps(self, taps: Sequence[mx.array]) -> mx.array:
        """Outputs of several layers (1, T, hidden) side by side."""
        return mx.concatenate(list(taps), axis=-1)

    @property
    def is_tied(self) -> bool:
        """True where the head is the embedding."""
        tied: bool = getattr(self.text.args, "tie_word_embeddings", False)
        return tied or not hasattr(self.text, "lm_head")

    def head(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) after the final norm -> (1, T, vocab), by the bare projection."""
        head = self.body.embed_tokens.as_linear if self.is_tied else self.text.lm_head
        logits: mx.array = head(hidden)
        return logits

    def logits(self, hidden: mx.array) -> mx.array:
        """As `head`, then what the model itself does to logits (a soft cap)."""
        return self.head(hidden)

    @abstractmethod
    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[Any]]:
        """(1, T) ids through every layer: (hidden after the final norm, taps, tapes)."""


class PlainBackbone(Backbone):
    """Transformers with one KV cache per layer: all of full attention, or some that slide."""

    cache_kind: CacheKind = "KV"

    def masks(self, hidden: mx.array, cache: Sequence[Any]) -> list[Any]:
        """The causal mask of each layer; the layers of one type share theirs, as in mlx-lm."""
        windows = [window_of(entry) for entry in cache]
        made: dict[int | None, Any] = {}
        for window, entry in zip(windows, cache, strict=True):
            if window not in made:
                made[window] = create_attention_mask(hidden, entry, window_size=window)
        return [made[window] for window in windows]

    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[Any]]:
        hidden = self.embed(token_ids)
        masks = self.masks(hidden, cache)
        taps: dict[int, mx.array] = {}
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, masks[index], cache[index])
            if index in tap_ids:
                taps[index] = hidden
        return self.body.norm(hidden), [taps[index] for index in tap_ids], [None] * len(cache)


class HybridBackbone(Backbone):
    """Qwen3-Next and Qwen3.5: Gated DeltaNet layers, with a full-attention layer every fourth."""

    cache_kind: CacheKind = "Hybrid"

    def make_cache(self) -> list[Any]:
        """A GdnCache per recurrent layer, mlx-lm's own cache for the others."""
        stock = super().make_cache()
        return [
            GdnCache() if layer.is_linear else entry
            for layer, entry in zip(self.layers, stock, strict=True)
        ]

    def gdn_layers(self) -> list[Any | None]:
        return [layer.linear_attn if layer.is_linear else None for layer in self.layers]

    def recur(
        self, gdn: Any, x: mx.array, entry: Any, record: bool
    ) -> tuple[mx.array, GdnTape | None]:
        """One GDN module over normed rows (1, T, hidden), its cache advanced."""
        return gdn_forward(gdn, x, entry, record=record)

    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[Any]]:
        hidden = self.embed(token_ids)
        mask = create_attention_mask(hidden, cache[self.body.fa_idx])
        taps: dict[int, mx.array] = {}
        tapes: list[Any] = []
        for index, (layer, entry) in enumerate(zip(self.layers, cache, strict=True)):
            normed = layer.input_layernorm(hidden)
            tape = None
            if layer.is_linear:
                mixed, tape = self.recur(layer.linear_attn, normed, entry, record)
            else:
                mixed = layer.self_attn(normed, mask, entry)
            hidden = hidden + mixed
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            tapes.append(tape)
            if index in tap_ids:
                taps[index] = hidden
        return self.body.norm(hidden), [taps[index] for index in tap_ids], tapes
