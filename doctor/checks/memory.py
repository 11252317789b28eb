"""Memory that a request needs, from headers: weights in the precision they run in, and caches."""

from __future__ import annotations

from typing import Any

from .slab import packed_bytes
from .subjects import DrafterSubject, TargetSubject

CONTEXT_TOKENS = 4096
"""Prompt and answer of an ordinary request."""
HALVES = ("BF16", "F16")


def target_bytes(target: TargetSubject) -> int:
    """Bytes of the parameters that are loaded (no vision tower, no MTP head) and of the caches."""
    from mlx.utils import tree_flatten

    arrays: Any = tree_flatten(target.filled.model.parameters())
    widened = target.machine.backend == "cpu"
    weights: int = sum(
        array.nbytes * (2 if widened and str(array.dtype).endswith("float16") else 1)
        for _, array in arrays
    )
    return weights + _cache_bytes(target, 4 if widened else 2)


def drafter_bytes(drafter: DrafterSubject) -> int:
    """Bytes of the drafter: of its slab, or of its own tensors where it has none."""
    packed = packed_bytes(drafter)
    if packed is not None:
        return packed
    widened = drafter.machine.backend == "cpu"
    return sum(
        (info.stop - info.start) * (2 if widened and info.dtype in HALVES else 1)
        for info in drafter.tensors.values()
    )


def resident(backend: str) -> str:
    """What bounds the memory of a Mac's GPU, to stand behind its size; nothing elsewhere."""
    if backend != "metal":
        return ""
    return " that macOS keeps resident (`sudo sysctl iogpu.wired_limit_mb=N` sets the bound)"


def _cache_bytes(target: TargetSubject, item_bytes: int) -> int:
    """Keys and values of CONTEXT_TOKENS rows; recurrent layers hold next to nothing."""
    text = target.config.raw.get("text_config") or target.config.raw
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads") or 0
    head_dim = text.get("head_dim") or 0
    layers = sum(not getattr(layer, "is_linear", False) for layer in target.model.layers)
    return int(2 * layers * heads * head_dim * item_bytes * CONTEXT_TOKENS)
