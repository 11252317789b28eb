"""The class that runs each supported model_type."""

from __future__ import annotations

from ..checkpoint.config_repairs import canonical_type, require_supported
from .backbones import Backbone, HybridBackbone, PlainBackbone
from .gemma4 import Gemma4Backbone

FAMILIES: dict[str, type[Backbone]] = {
    "gemma4": Gemma4Backbone,
    "gemma4_text": Gemma4Backbone,
    "gpt_oss": PlainBackbone,
    "llama": PlainBackbone,
    "qwen3": PlainBackbone,
    "qwen3_5": HybridBackbone,
    "qwen3_5_moe": HybridBackbone,
    "qwen3_moe": PlainBackbone,
    "qwen3_next": HybridBackbone,
}


def require_family(model_type: str, where: object) -> type[Backbone]:
    """The backbone class of a model_type, or UnsupportedModel that lists the supported ones."""
    require_supported(model_type, where)
    return FAMILIES[canonical_type(model_type)]
