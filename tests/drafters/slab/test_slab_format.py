"""The slab file: what it holds, that other tools open it, and that no damage goes unseen."""

from __future__ import annotations

import random
from pathlib import Path

import mlx.core as mx
import pytest
from safetensors import safe_open

from dflash_suite.core.checkpoint.safetensors_headers import read_header
from dflash_suite.core.errors import SlabError, TensorError
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.slab import build as slab_build
from dflash_suite.drafters.slab.file_format import ALIGNMENT_BYTES, Slab, open_slab
from tests.kit.slabs import half_tensors, plan_of, same_bits, save_half, use
from tests.kit.tiny_drafter import raw_drafter, save_drafter

pytestmark = pytest.mark.quick

SPARED = ("norm.weight", "base_kernel", "codebook")


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 32), (4, 32)])
def test_every_tensor_is_the_packing_of_its_source_or_the_source(
    tmp_path: Path, kind: DrafterKind, bits: int, group_size: int
) -> None:
    found = use(save_half(tmp_path / "d", kind), bits, group_size)
    source = half_tensors(raw_drafter(kind))
    packed = 0
    for name, tensor in source.items():
        if name.endswith(SPARED):
            assert same_bits(found.arrays[name], tensor), name  # Codebooks as they stand
            continue
        parts = mx.quantize(tensor, group_size=group_size, bits=bits)
        for suffix, part in zip((".weight", ".scales", ".biases"), parts, strict=True):
            assert same_bits(found.arrays[name.removesuffix(".weight") + suffix], part), name
        packed += 1
    # fc, the selector's projection, 7 a layer and 2 more with convolutions.
    assert packed == (1 + 2 * 7 if kind == "dflash" else 2 + 2 * 9)
    assert len(found.arrays) == len(source) + 2 * packed


def test_rows_packed_in_chunks_are_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_half(tmp_path / "d")
    whole = use(checkpoint)
    monkeypatch.setattr(slab_build, "CHUNK_BYTES", 300)  # two rows of 64, or one of 128
    chunked = use(checkpoint, force=True)
    assert chunked.quantize_calls > 10 * whole.quantize_calls > 0
    assert chunked.arrays.keys() == whole.arrays.keys()
    for name, array in chunked.arrays.items():
        assert same_bits(array, whole.arrays[name]), name


def test_the_header_is_padded_and_other_readers_open_the_file(tmp_path: Path) -> None:
    found = use(save_half(tmp_path / "d"))
    header = read_header(found.path)
    assert header.data_start % ALIGNMENT_BYTES == 0
    loaded = mx.load(str(found.path), format="safetensors")
    assert isinstance(loaded, dict)
    assert all(same_bits(array, found.arrays[name]) for name, array in loaded.items())
    with safe_open(found.path, framework="numpy") as file:
        assert set(file.keys()) == set(found.arrays)
        assert file.metadata()["bits"] == "4"
    by_start = sorted(header.tensors.values(), key=lambda info: info.start)
    assert all(info.start % 2 == 0 for info in by_start)
    assert all(info.start % 4 == 0 for info in by_start if info.dtype == "U32")


def test_float32_and_float16_sources_keep_their_dtype(tmp_path: Path) -> None:
    raw = raw_drafter()
    for dtype in (mx.float32, mx.float16):
        directory = tmp_path / str(dtype).rpartition(".")[2]
        tensors = {name: array.astype(dtype) for name, array in half_tensors(raw).items()}
        found = use(save_drafter(directory, raw, tensors))
        assert found.arrays["fc.scales"].dtype == dtype
        assert same_bits(found.arrays["norm.weight"], tensors["norm.weight"])


def test_a_projection_that_no_group_fits_stays_as_it_is(tmp_path: Path) -> None:
    found = use(save_half(tmp_path / "d", intermediate_size=96))
    assert "layers.0.mlp.down_proj.scales" not in found.arrays
    assert found.arrays["layers.0.mlp.down_proj.weight"].dtype == mx.bfloat16
    assert found.arrays["layers.0.mlp.up_proj.weight"].dtype == mx.uint32


def test_nothing_to_pack_is_an_error_that_says_so(tmp_path: Path) -> None:
    checkpoint = save_half(
        tmp_path / "d", hidden_size=48, intermediate_size=96, head_dim=8, kind="dflash"
    )
    with pytest.raises(SlabError, match=r"nothing to quantize; try a smaller --group-size"):
        plan_of(checkpoint)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_source_with_nan_or_infinity_is_refused(tmp_path: Path, value: float) -> None:
    raw = raw_drafter()
    tensors = half_tensors(raw)
    tensors["fc.weight"][3, 5] = value
    checkpoint = save_drafter(tmp_path / "d", raw, tensors)
    with pytest.raises(TensorError, match=r"fc\.weight holds NaN or infinity"):
        use(checkpoint)
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def read_all(path: Path) -> None:
    with open_slab(path) as slab:
        slab.read_arrays()


@pytest.mark.parametrize("reader", ["verify", "read_arrays"])
def test_no_flipped_bit_goes_unseen(tmp_path: Path, reader: str) -> None:
    path = use(save_half(tmp_path / "d")).path
    right = path.read_bytes()
    header_bytes = 8 + int.from_bytes(right[:8], "little")
    rng = random.Random(1)
    positions = [*range(12), *rng.sample(range(header_bytes), 150)]
    positions += rng.sample(range(header_bytes, len(right)), 150)
    for position in positions:
        damaged = bytearray(right)
        damaged[position] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(SlabError, match=str(path)), open_slab(path) as slab:
            getattr(slab, reader)()
    path.write_bytes(right)
    read_all(path)


def test_a_file_of_another_length_is_no_slab(tmp_path: Path) -> None:
    path = use(save_half(tmp_path / "d")).path
    right = path.read_bytes()
    rng = random.Random(2)
    for length in [0, 1, 8, 9, 4096, len(right) - 1, *rng.sample(range(len(right)), 40)]:
        path.write_bytes(right[:length])
        with pytest.raises(SlabError):
            read_all(path)
    path.write_bytes(right + b"\0")
    with pytest.raises(SlabError, match="not what its header says"):
        read_all(path)


def test_a_plain_checkpoint_and_another_version_are_no_slabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_half(tmp_path / "d")
    with pytest.raises(SlabError, match="no slab"):
        open_slab(checkpoint / "model.safetensors")
    path = use(checkpoint).path
    monkeypatch.setattr("dflash_suite.drafters.slab.file_format.FORMAT_VERSION", "2")
    with pytest.raises(SlabError, match="slab format 1, expected 2"):
        open_slab(path)


def test_arrays_do_not_need_the_file_any_more(tmp_path: Path) -> None:
    """Nothing is mapped or read later."""
    path = use(save_half(tmp_path / "d")).path
    with open_slab(path) as slab:
        arrays = Slab.read_arrays(slab, mx.float32)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert float(mx.abs(arrays["norm.weight"]).max()) > 0
    assert arrays["fc.scales"].dtype == mx.float32 and arrays["fc.weight"].dtype == mx.uint32
