"""Making a slab: the source is read once, in file order, and packed a few rows at a time.

Rows are packed independently, so a chunk of rows gives the same bits as the whole tensor, and the
memory needed is a few chunks, whatever the size of the largest tensor. Nothing here knows where a
slab is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...core.checkpoint.safetensors_headers import ITEM_BYTES, Header, TensorInfo
from ...core.checkpoint.weight_source import (
    CHUNK_BYTES,
    ByteProgress,
    Source,
    join_digests,
    read_source,
)
from ...core.errors import SlabError, TensorError
from ...core.options import QuantizeOptions
from ...core.regular_files import open_regular
from .file_format import SlabFacts, encode_header, read_fully, to_array, to_bytes, write_fully

MAGNITUDES: dict[str, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    "BF16": (np.uint16, 0x7FFF, 0x7F80),
    "F16": (np.uint16, 0x7FFF, 0x7C00),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
}
"""(bits as, all but the sign, infinity)."""
PACKED_PARTS = (".weight", ".scales", ".biases")


class Sink(Protocol):
    """Where the bytes of a slab's tensors go, in order within each tensor."""

    def append(self, name: str, data: memoryview) -> None:
        """The next bytes of tensor `name`."""


@dataclass(frozen=True)
class Plan:
    """A slab before it is made. packed: source names of the tensors that get packed."""

    source: Source
    options: QuantizeOptions
    packed: frozenset[str]
    tensors: dict[str, TensorInfo]

    @property
    def size_bytes(self) -> int:
        """Bytes of the slab's data, without its header."""
        return max((info.stop for info in self.tensors.values()), default=0)


def plan_slab(source: Source, linears: Iterable[str], options: QuantizeOptions) -> Plan:
    """Choose what is packed and lay the slab out.

    linears: source names of the projections' weights. Raises SlabError where none can be packed.
    """
    packed = frozenset(
        name
        for name in linears
        if name in source.tensors and source.tensors[name].shape[-1] % options.group_size == 0
    )
    if not packed:
        raise SlabError(
            f"{source.directory} has no projection whose input size is a multiple of the group "
            f"size {options.group_size}: nothing to quantize; try a smaller --group-size"
        )
    shapes: list[tuple[str, str, tuple[int, ...]]] = []
    for name, info in source.tensors.items():
        if name in packed:
            shapes.extend(_packed_parts(name, info, options))
        else:
            shapes.append((name, info.dtype, info.shape))
    shapes.sort(key=lambda part: (-ITEM_BYTES[part[1]], part[0]))
    tensors, start = {}, 0
    for name, dtype, shape in shapes:
        stop = start + ITEM_BYTES[dtype] * _count(shape)
        tensors[name] = TensorInfo(source.directory, dtype, shape, start, stop)
        start = stop
    return Plan(source, options, packed, tensors)


def _packed_parts(
    name: str, info: TensorInfo, options: QuantizeOptions
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    rows, columns = info.shape
    groups = (rows, columns // options.group_size)
    shapes = ((rows, columns * options.bits // 32), groups, groups)
    for part, dtype, shape in zip(
        PACKED_PARTS, ("U32", info.dtype, info.dtype), shapes, strict=True
    ):
        yield name.removesuffix(".weight") + part, dtype, shape


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def pack_source(plan: Plan, sink: Sink, progress: ByteProgress | None = None) -> str:
    """Stream the source into `sink`; returns the hash of the content that was read.

    Raises TensorError where the source changes meanwhile or holds NaN or infinity.
    """
    digests, done = [], 0
    for header in plan.source.headers:
        with open_regular(header.file) as stream:
            reader = _Reader(header, stream)
            for step in _pack_file(plan, header, reader, sink):
                done += step
                if progress:
                    progress(done, plan.source.size_bytes)
        digests.append(reader.digest.hexdigest())
    if read_source(plan.source.directory).files != plan.source.files:
        raise TensorError(
            f"{plan.source.directory} was written to while it was read; run again when it is done"
        )
    return join_digests(digests)


class _Reader:
    """One source file, hashed as it is read; a buffer is good until the next read."""

    def __init__(self, header: Header, stream: BinaryIO) -> None:
        self._header = header
        self._stream = stream
        self._buffer = memoryview(bytearray(min(CHUNK_BYTES, header.file_bytes)))
        self.digest = hashlib.sha256(header.block)
        stream.seek(header.data_start)

    def read(self, count: int) -> memoryview:
        """Exactly the next `count` bytes."""
        if count > len(self._buffer):  # one row longer than a chunk
            self._buffer = memoryview(bytearray(count))
        data = self._buffer[:count]
        if read_fully(self._stream, data) != count:
            raise TensorError(f"{self._header.file} got shorter while it was read; fetch it again")
        self.digest.update(data)
        return data

    def skip(self, count: int) -> Iterator[int]:
        """Bytes between tensors belong to the content, and to nothing else."""
        while count:
            step = len(self.read(min(count, CHUNK_BYTES)))
            count -= step
            yield step


def _pack_file(plan: Plan, header: Header, reader: _Reader, sink: Sink) -> Iterator[int]:
    """Feed one file to the reader's digest and to `sink`; yields the bytes of each step."""
    yield header.data_start
    position = 0
    for name, info in sorted(header.tensors.items(), key=lambda item: item[1].start):
        yield from reader.skip(info.start - position)
        row_bytes = ITEM_BYTES[info.dtype] * _count(info.shape[1:])
        step = max(1, CHUNK_BYTES // max(1, row_bytes)) * row_bytes
        left = info.stop - info.start
        while left:
            data = reader.read(min(step, left))
            _emit(plan, name, info, data, sink)
            left -= len(data)
            yield len(data)
        position = info.stop
    yield from reader.skip(header.file_bytes - header.data_start - position)
    mx.clear_cache()


def _emit(plan: Plan, name: str, info: TensorInfo, data: memoryview, sink: Sink) -> None:
    if name not in plan.packed:
        if info.dtype in MAGNITUDES and not all_finite(data, info.dtype):
            raise _not_finite(name, info)
        sink.append(name, data)
        return
    rows = to_array(data, info.dtype, (-1, info.shape[1]))
    parts = mx.quantize(rows, group_size=plan.options.group_size, bits=plan.options.bits)
    mx.eval(parts)
    scales_fit = all(bool(mx.isfinite(part).all()) for part in parts[1:])
    if not (scales_fit and all_finite(data, info.dtype)):
        raise _not_finite(name, info)
    for suffix, part in zip(PACKED_PARTS, parts, strict=True):
        sink.append(name.removesuffix(".weight") + suffix, to_bytes(part))


def _not_finite(name: str, info: TensorInfo) -> TensorError:
    return TensorError(f"{info.file}: tensor {name} holds NaN or infinity; fetch it again")


def all_finite(data: memoryview, dtype: str) -> bool:
    """No NaN, no infinity. Bits less the sign grow with the number, and these are on top."""
    bits, magnitude, infinity = MAGNITUDES[dtype]
    return bool((np.frombuffer(data, dtype=bits) & bits(magnitude)).max(initial=0) < infinity)


class FileSink:
    """Writes a slab at its offsets, and its header when everything else is there."""

    def __init__(self, plan: Plan, stream: BinaryIO, facts: SlabFacts) -> None:
        self._plan = plan
        self._stream = stream
        self._facts = facts
        self._digests = {name: hashlib.sha256() for name in plan.tensors}
        self._written = dict.fromkeys(plan.tensors, 0)
        self._data_start = len(self._header())

    def append(self, name: str, data: memoryview) -> None:
        """Write the next bytes of a tensor and count them into its checksum."""
        offset = self._data_start + self._plan.tensors[name].start + self._written[name]
        write_fully(self._stream, data, offset)
        self._digests[name].update(data)
        self._written[name] += len(data)

    def finish(self, content: str) -> None:
        """Write the header, which makes the file a slab of the source with that content."""
        self._facts = replace(self._facts, content=content)
        write_fully(self._stream, self._header(), 0)

    def _header(self) -> bytes:
        digests = {name: digest.hexdigest() for name, digest in self._digests.items()}
        return encode_header(self._plan.tensors, self._facts, digests)


class MemorySink:
    """Keeps a slab's tensors in memory, where no disk will take them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._data = {name: bytearray() for name in plan.tensors}

    def append(self, name: str, data: memoryview) -> None:
        """Keep the next bytes of a tensor."""
        self._data[name] += data

    def arrays(self, dtype: mx.Dtype) -> dict[str, mx.array]:
        """As Slab.read_arrays; gives the bytes up on the way."""
        arrays: dict[str, mx.array] = {}
        for name, info in self._plan.tensors.items():
            array = to_array(memoryview(self._data.pop(name)), info.dtype, info.shape)
            if mx.issubdtype(array.dtype, mx.floating):
                array = array.astype(dtype)
            mx.eval(array)
            arrays[name] = array
        return arrays


def linear_weights(model: nn.Module, names: Mapping[str, str]) -> list[str]:
    """Source names of the projections' weights. names: source name -> name in the modules."""
    linears = {f"{name}.weight" for name, part in model.named_modules() if type(part) is nn.Linear}
    return [source for source, name in names.items() if name in linears]
