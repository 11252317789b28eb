"""A target's forward over mlx-lm's submodules, one small class per family.

Each runs the decoder layers itself, so that taps and tape can be read without touching the loaded
model. No lm_head here unless asked for: prompt rows never pay for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, make_prompt_cache

from .caches import CacheKind, GdnCache
from .errors import UnsupportedModel
from .gdn import GdnTape, gdn_forward


class Backbone(ABC):
    """The parts of one loaded mlx-lm model that decoding needs."""

    cache_kind: CacheKind

    def __init__(self, model: Any) -> None:
        self.model = model
        self.text = getattr(model, "language_model", model)
        self.body = self.text.model

    @property
    def layers(self) -> Sequence[Any]:
        """The decoder layers, in order."""
        layers: Sequence[Any] = self.model.layers
        return layers

    def make_cache(self) -> list[Any]:
        """A fresh cache, one entry per layer."""
        cache: list[Any] = make_prompt_cache(self.model)
        return cache

    def require_rollback(self, where: object) -> None:
        """Raise UnsupportedModel where a layer's cache forgets rows: a sliding window that has
        wrapped cannot give back what a rejected draft pushed out."""
        for index, entry in enumerate(self.make_cache()):
            if not isinstance(entry, GdnCache | KVCache):
                raise UnsupportedModel(
                    f"{where}: layer {index} uses a {type(entry).__name__}, which cannot be rolled "
                    "back; a target may have full attention and Gated DeltaNet layers only"
                )

    def gdn_layers(self) -> list[Any | None]:
        """The GDN module of each layer, None for attention layers."""
        return [None] * len(self.layers)

    def embed(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden), as the target's first layer gets them."""
        embedded: mx.array = self.body.embed_tokens(token_ids)
        return embedded

    def logits(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) after the final norm -> (1, T, vocab)."""
        tied = getattr(self.text.args, "tie_word_embeddings", False)
        head = self.body.embed_tokens.as_linear if tied else self.text.lm_head
        logits: mx.array = head(hidden)
        return logits

    @abstractmethod
    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[GdnTape | None]]:
        """Embedded rows through every layer: (hidden after the final norm, taps, tapes)."""


class PlainBackbone(Backbone):
    """Transformers with one KV cache per layer and one causal mask for all of them."""

    cache_kind: CacheKind = "KV"

    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[GdnTape | None]]:
        mask = create_attention_mask(hidden, cache[0])
        taps: dict[int, mx.array] = {}
        for index, (layer, entry) in enumerate(zip(self.layers, cache, strict=True)):
            hidden = layer(hidden, mask, entry)
            if index in tap_ids:
                taps[index] = hidden
        return self.body.norm(hidden), [taps[index] for index in tap_ids], [None] * len(cache)


class HybridBackbone(Backbone):
    """Qwen3.5: Gated DeltaNet layers, with a full-attention layer every fourth."""

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

    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[GdnTape | None]]:
        mask = create_attention_mask(hidden, cache[self.body.fa_idx])
        taps: dict[int, mx.array] = {}
        tapes: list[GdnTape | None] = []
        for index, (layer, entry) in enumerate(zip(self.layers, cache, strict=True)):
            normed = layer.input_layernorm(hidden)
            tape = None
            if layer.is_linear:
                mixed, tape = gdn_forward(layer.linear_attn, normed, entry, record=record)
            else:
                mixed = layer.self_attn(normed, mask, entry)
            hidden = hidden + mixed
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            tapes.append(tape)
            if index in tap_ids:
                taps[index] = hidden
        return self.body.norm(hidden), [taps[index] for index in tap_ids], tapes


FAMILIES: dict[str, type[Backbone]] = {
    "llama": PlainBackbone,
    "qwen3": PlainBackbone,
    "qwen3_5": HybridBackbone,
}


def require_family(model_type: str, where: object) -> type[Backbone]:
    """The backbone class of a model_type, or UnsupportedModel that lists the supported ones."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedModel(
            f"{where}: model_type '{model_type}' is not supported as a target; supported: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return family
