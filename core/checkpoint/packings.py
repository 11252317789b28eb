"""Which packings of a matrix MLX has: bits, group sizes, and the modes by them."""

from __future__ import annotations

PACKED_BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (16, 32, 64, 128)
FLOAT_MODES = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
"""(bits, group size) -> the mode of packs whose scales are bytes."""
MODES = ("affine", *FLOAT_MODES.values())
