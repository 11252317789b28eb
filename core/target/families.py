"""The class that runs each kind of decoder; which family has which stands in its row."""

from __future__ import annotations

from ..checkpoint.families import Decoder, require_supported
from .backbones import Backbone, HybridBackbone, PlainBackbone
from .gemma4 import Gemma4Backbone

BACKBONES: dict[Decoder, type[Backbone]] = {
    "gemma4": Gemma4Backbone,
    "hybrid": HybridBackbone,
    "plain": PlainBackbone,
}


def backbone_class(model_type: str, where: object = "config.json") -> type[Backbone]:
    """The class for a model_type, or UnsupportedModel that lists the supported ones."""
    return BACKBONES[require_supported(model_type, where).decoder]
