"""Headers of safetensors files: read without data, and nothing broken passes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.safetensors_headers import (
    ITEM_BYTES,
    listing,
    read_header,
    read_headers,
)
from dflash_suite.core.checkpoint.weight_index import weight_files
from dflash_suite.core.errors import DflashError, ModelNotFound, TensorError

pytestmark = pytest.mark.quick


def entry(dtype: str = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def write(file: Path, header: Any, data_bytes: int = 24, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    announced = len(text) if length is None else length
    file.write_bytes(announced.to_bytes(8, "little") + text + bytes(data_bytes))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_a_file_written_by_mlx(file: Path) -> None:
    arrays = {"a": mx.zeros((2, 3)), "b": mx.ones((4,), dtype=mx.bfloat16), "c": mx.array(1)}
    mx.save_safetensors(str(file), arrays, metadata={"format": "mlx"})
    header = read_header(file)
    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (4,)),
        "c": ("I32", ()),
    }
    assert header.metadata == {"format": "mlx"}
    assert header.file_bytes == file.stat().st_size
    assert all(info.file == file for info in header.tensors.values())
    assert max(info.stop for info in header.tensors.values()) == (
        header.file_bytes - header.data_start
    )


def test_only_the_header_is_read(file: Path) -> None:
    """A sparse file of a terabyte is checked at once."""
    size = 1 << 40
    write(file, {"a": entry("U8", (size,), (0, size))}, data_bytes=0)
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size + size)
    assert read_header(file).tensors["a"].stop == size


def test_empty_tensors_and_no_tensor(file: Path) -> None:
    header = {
        "a": entry(shape=(0, 3), offsets=(0, 0)),
        "b": entry(),
        "c": entry("I8", (0,), (24, 24)),
    }
    assert len(read_header(write(file, header)).tensors) == 3
    assert read_header(write(file, {}, 0)).tensors == {}


BROKEN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "length over the file": ({"a": entry()}, {"length": 10**6}, "announces a header of 1000000"),
    "length 2**63": ({"a": entry()}, {"length": 2**63}, "truncated or no safetensors file"),
    "length 0": ({"a": entry()}, {"length": 0}, "announces a header of 0 bytes"),
    "no JSON": (b"{not json}", {}, "has a header that is not JSON"),
    "cut JSON": (json.dumps({"a": entry()}).encode()[:-3], {}, "has a header that is not JSON"),
    "no UTF-8": (b'{"\xff": 1}', {}, "has a header that is not JSON"),
    "nested too deep": (b"[" * 100_000, {}, "has a header that is not JSON"),
    "a number too long": (b'{"a": ' + b"9" * 5000 + b"}", {}, "has a header that is not JSON"),
    "a list": ([1, 2], {}, "has a header that is not a JSON object"),
    "metadata a list": ({"__metadata__": [1], "a": entry()}, {}, "__metadata__ that is not a JSON"),
    "entry a number": ({"a": 3}, {}, "the entry of tensor a is 3, expected dtype, shape and two"),
    "entry null": ({"a": None}, {}, "the entry of tensor a is None"),
    "no dtype": ({"a": {"shape": [2, 3], "data_offsets": [0, 24]}}, {}, "the entry of tensor a"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 24]}}, {}, "the entry of tensor a"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2, 3]}}, {}, "the entry of tensor a"),
    "three offsets": ({"a": entry(offsets=(0, 24, 30))}, {}, "the entry of tensor a"),
    "a float offset": ({"a": entry(offsets=(0, 24.0))}, {}, "the entry of tensor a"),
    "a text shape": ({"a": entry(shape=("2", "3"))}, {}, "the entry of tensor a"),
    "a true dimension": ({"a": entry(shape=(True, 6))}, {}, "the entry of tensor a"),
    "dtype a list": ({"a": {**entry(), "dtype": ["F32"]}}, {}, "the entry of tensor a"),
    "unknown dtype": ({"a": entry("F33")}, {}, "tensor a has the unknown dtype F33"),
    "lower case dtype": ({"a": entry("f32")}, {}, "tensor a has the unknown dtype f32"),
    "beyond the end": ({"a": entry()}, {"data_bytes": 23}, "ends at byte 24 of the data, but only"),
    "no data": ({"a": entry()}, {"data_bytes": 0}, "the file is truncated; fetch it again"),
    "too long for the shape": ({"a": entry(offsets=(0, 20))}, {}, "is 24 bytes"),
    "misordered": ({"a": entry(offsets=(24, 0))}, {}, "takes bytes 24..0"),
    "before the data": ({"a": entry(offsets=(-4, 20))}, {}, "takes bytes -4..20"),
    "negative dimensions": ({"a": entry(shape=(-2, -3))}, {}, "takes bytes 0..24"),
    "overlap": (
        {"a": entry(), "b": entry("F32", (3,), (20, 32))},
        {"data_bytes": 32},
        "tensors a and b overlap at byte 20",
    ),
    "the same bytes twice": ({"a": entry(), "b": entry()}, {}, "tensors a and b overlap"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_header_is_named(file: Path, name: str) -> None:
    header, settings, message = BROKEN[name]
    write(file, header, **settings)
    with pytest.raises(TensorError) as caught:
        read_header(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("size", range(0, 9))
def test_a_file_that_is_too_small(file: Path, size: int) -> None:
    file.write_bytes(bytes(size))
    with pytest.raises(TensorError, match=f"is {size} bytes, too small for safetensors"):
        read_header(file)


def test_every_cut_of_a_good_file_is_refused(file: Path) -> None:
    mx.save_safetensors(str(file), {"a": mx.zeros((2, 3)), "b": mx.ones((4,))})
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(TensorError):
            read_header(file)


def test_random_damage_is_refused_or_harmless(file: Path) -> None:
    """Any other exception would be a traceback for the user."""
    mx.save_safetensors(str(file), {"a": mx.zeros((2, 3)), "b": mx.ones((4,))})
    whole = file.read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(whole) - 40)] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            read_header(file)
        except DflashError:
            refused += 1
    assert refused > 200


def test_item_sizes_are_those_of_mlx() -> None:
    names = {
        "BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "U16": mx.uint16, "I16": mx.int16,
        "F16": mx.float16, "BF16": mx.bfloat16, "U32": mx.uint32, "I32": mx.int32,
        "F32": mx.float32, "U64": mx.uint64, "I64": mx.int64, "C64": mx.complex64,
    }  # fmt: skip
    for name, dtype in names.items():
        assert ITEM_BYTES[name] == dtype.size


def test_weight_files_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="has no weights: no .*safetensors file is there"):
        weight_files(tmp_path)
    for name in ("b.safetensors", "a.safetensors", "config.json", "model.safetensors.json"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.safetensors").mkdir()
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]


def test_a_name_in_two_files(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "one.safetensors", {"a": entry()}),
        write(tmp_path / "two.safetensors", {"a": entry()}),
    ]
    with pytest.raises(TensorError, match="tensor a is in both .*one.safetensors and .*two"):
        read_headers(files)
    write(files[1], {"b": entry()})
    assert set(read_headers(files)) == {"a", "b"}


def test_listing_stops_at_ten() -> None:
    assert listing(["a", "b"]) == "a, b"
    names = [str(number) for number in range(13)]
    assert listing(names) == ", ".join(names[:10]) + " and 3 more"
    assert listing(names[:10]) == ", ".join(names[:10])
