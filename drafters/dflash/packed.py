"""Modules whose weights are already packed: nothing is quantized to make one."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import mlx.nn as nn

from .quantization import Packing

PARTS = ("weight", "scales", "biases", "bias")


class PackedLinear(nn.QuantizedLinear):
    """mlx's own layer without its constructor, which packs random weights first."""

    def __init__(self, bits: int, group_size: int, mode: str = "affine") -> None:
        nn.Module.__init__(self)
        self.bits, self.group_size, self.mode = bits, group_size, mode


class PackedEmbedding(nn.QuantizedEmbedding):
    """As PackedLinear, for a table of which single rows are unpacked."""

    def __init__(self, bits: int, group_size: int, mode: str = "affine") -> None:
        nn.Module.__init__(self)
        self.bits, self.group_size, self.mode = bits, group_size, mode


def pack_modules(
    model: nn.Module, arrays: dict[str, mx.array], packings: Mapping[str, Packing]
) -> None:
    """Make room for packed arrays: each path of `packings` becomes a packed module.

    A linear layer's weight stands in `arrays` under `PATH.weight`; a bare table's stands under
    PATH and is renamed so. The parameters themselves are set by load_weights.
    """
    modules = dict(model.named_modules())
    for path, packing in packings.items():
        kind = PackedLinear if isinstance(modules.get(path), nn.Linear) else PackedEmbedding
        if path in arrays:
            arrays[f"{path}.weight"] = arrays.pop(path)
        packed = kind(packing.bits, packing.group_size, packing.mode)
        for part in PARTS:
            if f"{path}.{part}" in arrays:
                packed[part] = arrays[f"{path}.{part}"]
        owner, _, name = path.rpartition(".")
        modules[owner][name] = packed


def most_bits(model: nn.Module) -> int:
    """The bits a weight that most weights of the projections have."""
    counts: dict[int, int] = {}
    for _, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.QuantizedLinear):
            bits = int(getattr(module, "bits", 16))
            held = int(module.weight.size) * (32 // bits if bits < 16 else 1)
            counts[bits] = counts.get(bits, 0) + held
    return max(counts, key=lambda bits: (counts[bits], -bits), default=16)
