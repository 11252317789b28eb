"""The one table of packings, against MLX itself."""

from __future__ import annotations

import re

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.packings import FLOAT_MODES, GROUP_SIZES, PACKED_BITS
from tests.kit.places import ROOT


@pytest.mark.parametrize(("size", "mode"), FLOAT_MODES.items())
def test_mlx_packs_so_and_no_other_way(size: tuple[int, int], mode: str) -> None:
    bits, group_size = size
    weight = mx.random.normal((8, 256))
    packed, scales = mx.quantize(weight, group_size, bits, mode=mode)[:2]
    assert packed.shape == (8, 256 * bits // 32) and scales.shape == (8, 256 // group_size)
    assert scales.dtype == mx.uint8
    for other in {*PACKED_BITS} - {bits}:
        with pytest.raises(ValueError):
            mx.eval(mx.quantize(weight, group_size, other, mode=mode))


def test_affine_packs_have_scales_that_are_no_bytes() -> None:
    assert set(GROUP_SIZES) >= {32, 64, 128}
    for bits in PACKED_BITS:
        assert mx.quantize(mx.ones((8, 256)), 64, bits)[1].dtype != mx.uint8


def test_the_table_stands_in_one_place() -> None:
    parts = ("core", "drafters", "doctor", "cli")
    files = [file for part in parts for file in (ROOT / part).rglob("*.py")]
    found = [file for file in files if re.search(r'\): "(nvfp4|mxfp[48])"', file.read_text())]
    assert found == [ROOT / "core" / "checkpoint" / "packings.py"]
