"""How a drafter's file says it is packed: the `quantization` block that MLX's converters write.

Everything here comes from config.json and headers; no array is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.checkpoint.packings import FLOAT_MODES, GROUP_SIZES, MODES, PACKED_BITS
from ...core.errors import ConfigError
from ...core.json_values import checked, is_whole, shown


@dataclass(frozen=True)
class Packing:
    """One packed matrix: `bits` a weight, a scale every `group_size` of them."""

    bits: int
    group_size: int
    mode: str = "affine"

    def __str__(self) -> str:
        return f"{self.bits} bits in groups of {self.group_size}, {self.mode}"

    def part_shapes(self, rows: int, columns: int) -> dict[str, tuple[int, int]]:
        """Shapes of `weight` (uint32), `scales` and, where affine, `biases`."""
        groups = (rows, columns // self.group_size)
        shapes = {"weight": (rows, columns * self.bits // 32), "scales": groups}
        return shapes | ({"biases": groups} if self.mode == "affine" else {})


@dataclass(frozen=True)
class Quantization:
    """overrides: module path -> its own packing; the others follow from their shapes. unpacked:
    modules that the block leaves as they are; whole: what it states for all others, None where
    there is no block."""

    overrides: Mapping[str, Packing] = field(default_factory=dict)
    unpacked: tuple[str, ...] = ()
    whole: Packing | None = None


def read_quantization(file: Path, raw: Mapping[str, Any]) -> Quantization:
    """The `quantization` (or, as some converters repeat it, `quantization_config`) block.

    Raises ConfigError for a block that states no packing of MLX's.
    """
    block = raw.get("quantization") or raw.get("quantization_config")
    if block is None:
        return Quantization()
    checked("object", f"{file}: 'quantization'", block)
    other = raw.get("quantization_config")
    if raw.get("quantization") and isinstance(other, dict) and other != block:
        raise ConfigError(
            f"{file}: 'quantization' and 'quantization_config' disagree; keep the one that the "
            "tensors were packed by"
        )
    whole = _packing(file, "quantization", block)
    named = {path.removeprefix("model."): value for path, value in block.items()}
    return Quantization(
        {
            path: _packing(file, f"quantization.{path}", value)
            for path, value in named.items()
            if isinstance(value, dict)
        },
        tuple(path for path, value in named.items() if value is False),
        whole,
    )


def _packing(file: Path, label: str, block: Mapping[str, Any]) -> Packing:
    """Bits, group size and mode; an override that names no mode is affine, as MLX reads it."""
    bits, group = block.get("bits"), block.get("group_size")
    mode = block.get("mode", "affine")
    if is_whole(bits) and is_whole(group):
        affine = mode == "affine" and bits in PACKED_BITS and group in GROUP_SIZES
        if affine or mode == FLOAT_MODES.get((bits, group)):
            return Packing(bits, group, mode)
    raise ConfigError(
        f"{file}: '{label}' states bits {shown(bits)}, group_size {shown(group)}, mode "
        f"{shown(mode)}; expected bits of {PACKED_BITS}, group_size of {GROUP_SIZES}, mode of "
        f"{MODES}"
    )


def infer_packing(
    columns: int, weight: tuple[int, ...], scales: tuple[int, ...], scales_are_bytes: bool
) -> Packing | None:
    """The packing that shapes tell: weight (rows, columns * bits / 32), scales (rows, groups).

    None where they tell none.
    """
    if len(weight) != 2 or len(scales) != 2 or not scales[1]:
        return None
    bits, rest = divmod(weight[1] * 32, columns)
    group, uneven = divmod(columns, scales[1])
    if rest or uneven or bits not in PACKED_BITS or group not in GROUP_SIZES:
        return None
    if not scales_are_bytes:
        return Packing(bits, group)
    mode = FLOAT_MODES.get((bits, group))
    return Packing(bits, group, mode) if mode else None
