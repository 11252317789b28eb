"""Gemma 4's decoder: scaled embedding, per-layer inputs, shared keys and values, a soft cap.

Follows mlx-lm's models/gemma4_text.py (0.32.2) over its own submodules; `forward_check.py` holds
the logits bitwise equal at load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.gemma4_text import logit_softcap

from .backbones import PlainBackbone
from .gated_delta import GdnTape


class Gemma4Backbone(PlainBackbone):
    """Sliding and full layers; the last layers may use the keys and values of earlier ones.

    The cache has an entry for each layer that makes keys and values of its own.
    """

    @property
    def own_layers(self) -> int:
        """Layers with keys and values of their own: the first ones."""
        config = self.body.config
        return int(config.num_hidden_layers - config.num_kv_shared_layers)

    def gdn_layers(self) -> list[Any | None]:
        return [None] * self.own_layers

    def embed(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden), times sqrt(hidden)."""
        embedded: mx.array = self.body.embed_tokens(token_ids) * self.body.embed_scale
        return embedded

    def logits(self, hidden: mx.array) -> mx.array:
        """The head's logits, capped as the model caps them."""
        cap = self.text.final_logit_softcapping
        logits = self.head(hidden)
        return logits if cap is None else logit_softcap(cap, logits)

    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[GdnTape | None]]:
        hidden = self.embed(token_ids)
        extras = self._per_layer_inputs(token_ids, hidden)
        made = self.masks(hidden, cache)
        by_type = {self.layers[i].layer_type: mask for i, mask in enumerate(made)}
        shared: list[tuple[Any, Any]] = []
        taps: dict[int, mx.array] = {}
        for index, layer in enumerate(self.layers):
            own = index < len(cache)
            # A later layer takes keys, values and offset from the last own layer of its type.
            kv, offset = (None, None) if own else shared[self.body.previous_kvs[index]]
            hidden, kv, offset = layer(
                hidden,
                by_type[layer.layer_type],
                cache[index] if own else None,
                per_layer_input=extras[index],
                shared_kv=kv,
                offset=offset,
            )
            shared.append((kv, offset))
            if index in tap_ids:
                taps[index] = hidden
        return self.body.norm(hidden), [taps[index] for index in tap_ids], [None] * len(cache)

    def _per_layer_inputs(self, token_ids: mx.array, hidden: mx.array) -> list[mx.array | None]:
        """(1, T, extra width) for each layer; None where the model has no such inputs."""
        body = self.body
        if not body.hidden_size_per_layer_input:
            return [None] * len(self.layers)
        split = (len(self.layers), body.hidden_size_per_layer_input)
        looked_up = body.embed_tokens_per_layer(token_ids) * body.embed_tokens_per_layer_scale
        projected = body.per_layer_model_projection(hidden) * body.per_layer_projection_scale
        projected = body.per_layer_projection_norm(mx.unflatten(projected, -1, split))
        extra = (projected + mx.unflatten(looked_up, -1, split)) * body.per_layer_input_scale
        return [extra[:, :, index] for index in range(len(self.layers))]
