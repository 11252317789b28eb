"""The slab: a drafter's weights, packed once, opened without quantizing again.

A slab is one safetensors file that holds every tensor of its source under the source's names.
Projections (each nn.Linear whose input size is a multiple of the group size; the published
DFlash2 of the 27B has 47) are MLX affine packings: NAME.weight U32, NAME.scales and NAME.biases
in the source's dtype. Base kernels, codebooks and norms are copied as they stand. The header is
padded with spaces so that data starts at a multiple of 4,096 bytes; wider items come first, so
every tensor is aligned.

Key. The metadata holds the source's quick key (name, size, mtime_ns and header sha256 of each
file), bits, group size and format version, and the sha256 of the source's content that the quick
key stood for when the slab was made. An equal quick key is believed (--verify hashes all the
same). A quick key that differs in name or time alone sends the reader to the content hash; any
other difference means another source.

Checksums. `digests` has the sha256 of each tensor, `header_digest` that of the header with the
digest itself as zeros; the file ends where the last tensor does. All are checked whenever a slab
is opened, on the very bytes that are used: no bit of the file can change unseen. They guard
against accidents, not against a forger, who could write a whole new slab.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import mlx.core as mx
import numpy as np

from ...core.checkpoint.safetensors_headers import (
    Header,
    TensorInfo,
    parse_header,
    read_header_block,
)
from ...core.checkpoint.weight_source import CHUNK_BYTES, ByteProgress, SourceFile
from ...core.errors import SlabError, TensorError
from ...core.json_values import parse_object
from ...core.options import QuantizeOptions
from ...core.regular_files import open_regular

FORMAT_VERSION = "1"
MARK = b'"dflash_slab":"'
MARK_WITHIN_BYTES = 4096
ALIGNMENT_BYTES = 4096
HEADER_DIGEST = re.compile(rb'"header_digest":"([0-9a-f]{64})"')
NO_DIGEST = "0" * 64
NUMPY_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
    "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64,
    "F16": np.float16, "BF16": np.uint16, "F32": np.float32,
}  # fmt: skip


@dataclass(frozen=True)
class SlabFacts:
    """What a slab says of itself. content: hash of the source's content; path may be empty."""

    options: QuantizeOptions
    source_path: str
    source_files: tuple[SourceFile, ...]
    content: str
    mlx_version: str


class Slab:
    """An open slab whose header is intact; close it, or use it in a `with`."""

    def __init__(self, path: Path, stream: BinaryIO, header: Header) -> None:
        self.path = path
        self.header = header
        self.facts, self._digests = _parse_metadata(path, header)
        self._stream = stream
        self._buffer = memoryview(b"")

    def __enter__(self) -> Slab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.header.file_bytes

    def rekeyed(self, facts: SlabFacts) -> bytes:
        """The header that this slab has with other facts; its data stays as it is."""
        return encode_header(self.header.tensors, facts, self._digests)

    def copy_data(self, stream: BinaryIO, start: int) -> None:
        """Write the data part to `stream` from byte `start` on."""
        self._stream.seek(self.header.data_start)
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self.size_bytes)))
        while count := read_fully(self._stream, buffer):
            write_fully(stream, buffer[:count], start)
            start += count

    def verify(self, progress: ByteProgress | None = None) -> None:
        """Check every tensor's checksum. Raises SlabError for a damaged file."""
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self.size_bytes)))
        for name, info in self._in_order():
            digest, left = hashlib.sha256(), info.stop - info.start
            while left:
                data = buffer[: min(left, CHUNK_BYTES)]
                self._fill(data)
                digest.update(data)
                left -= len(data)
            self._check(name, digest.hexdigest())
            self._report(progress, info)

    def read_arrays(
        self, dtype: mx.Dtype | None = None, progress: ByteProgress | None = None
    ) -> dict[str, mx.array]:
        """Every tensor, evaluated; floating ones cast to `dtype`, packed weights as they are.

        Each is checked against its checksum before it is used. Raises SlabError.
        """
        arrays: dict[str, mx.array] = {}
        for name, info in self._in_order():
            array = self.read_tensor(name)
            if dtype is not None and mx.issubdtype(array.dtype, mx.floating):
                array = array.astype(dtype)
            mx.eval(array)
            arrays[name] = array
            self._report(progress, info)
        return arrays

    def read_tensor(self, name: str) -> mx.array:
        """One tensor as it stands, checked against its checksum. Raises SlabError."""
        info = self.header.tensors[name]
        self._stream.seek(self.header.data_start + info.start)
        data = self._room(info.stop - info.start)
        self._fill(data)
        self._check(name, hashlib.sha256(data).hexdigest())
        return to_array(data, info.dtype, info.shape)

    def _room(self, count: int) -> memoryview:
        """One buffer for all reads: fresh pages cost more than reading into old ones."""
        if not self._buffer:
            tensors = self.header.tensors.values()
            largest = max((info.stop - info.start for info in tensors), default=0)
            self._buffer = memoryview(bytearray(largest))
        return self._buffer[:count]

    def _in_order(self) -> list[tuple[str, TensorInfo]]:
        self._stream.seek(self.header.data_start)
        return sorted(self.header.tensors.items(), key=lambda item: item[1].start)

    def _fill(self, view: memoryview) -> None:
        if read_fully(self._stream, view) != len(view):
            raise SlabError(f"{self.path} is truncated")

    def _check(self, name: str, digest: str) -> None:
        if self._digests.get(name) != digest:
            raise SlabError(f"{self.path} is damaged: tensor {name} does not have its checksum")

    def _report(self, progress: ByteProgress | None, info: TensorInfo) -> None:
        if progress:
            progress(self.header.data_start + info.stop, self.size_bytes)


def open_slab(path: Path) -> Slab:
    """Open a slab and check its header. Raises SlabError, or OSError where it cannot be read."""
    stream = open_regular(path)
    try:
        return Slab(path, stream, _checked_header(path, stream))
    except TensorError as exc:
        stream.close()
        raise SlabError(f"{path} is damaged or no slab: {exc}") from exc
    except BaseException:
        stream.close()
        raise


def is_marked(path: Path) -> bool:
    """Whether a file was made here, even if it is damaged now: whether it begins as a slab does.
    Raises OSError where it cannot be read."""
    with open_regular(path) as stream:
        return MARK in stream.read(MARK_WITHIN_BYTES)


def _checked_header(path: Path, stream: BinaryIO) -> Header:
    """The header, parsed only after its digest was found right."""
    block, size = read_header_block(stream, path)
    found = HEADER_DIGEST.findall(block)
    if len(found) != 1 or _digest_header(block, found[0]) != found[0].decode():
        raise SlabError(f"{path} is damaged or no slab: its header does not have its checksum")
    header = parse_header(path, block, size)
    ends = sorted((info.start, info.stop) for info in header.tensors.values())
    if header.data_start + (ends[-1][1] if ends else 0) != size:
        raise SlabError(f"{path} is {size} bytes, which is not what its header says")
    return header


def _digest_header(block: bytes, digest: bytes) -> str:
    return hashlib.sha256(block.replace(digest, NO_DIGEST.encode(), 1)).hexdigest()


def _parse_metadata(path: Path, header: Header) -> tuple[SlabFacts, Mapping[str, str]]:
    metadata = header.metadata
    version = metadata.get("dflash_slab")
    if version != FORMAT_VERSION:
        raise SlabError(f"{path} has the slab format {version}, expected {FORMAT_VERSION}")
    try:
        source = parse_object(metadata["source"], "'source'", ValueError)
        facts = SlabFacts(
            options=QuantizeOptions(int(metadata["bits"]), int(metadata["group_size"])),
            source_path=source["path"],
            source_files=tuple(SourceFile(*entry) for entry in source["files"]),
            content=source["content"],
            mlx_version=metadata["mlx"],
        )
        return facts, parse_object(metadata["digests"], "'digests'", ValueError)
    except (KeyError, TypeError, ValueError) as exc:
        raise SlabError(f"{path} has metadata that no slab has ({exc!r})") from exc


def encode_header(
    tensors: Mapping[str, TensorInfo], facts: SlabFacts, digests: Mapping[str, str]
) -> bytes:
    """The padded header; its length does not depend on what the digests are."""
    source = {
        "path": facts.source_path,
        "files": [astuple(file) for file in facts.source_files],
        "content": facts.content,
    }
    metadata = {
        "format": "mlx",
        "dflash_slab": FORMAT_VERSION,
        "bits": str(facts.options.bits),
        "group_size": str(facts.options.group_size),
        "mode": "affine",
        "mlx": facts.mlx_version,
        "source": _compact(source),
        "digests": _compact(dict(digests)),
        "header_digest": NO_DIGEST,
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    for name, info in tensors.items():
        offsets = [info.start, info.stop]
        entries[name] = {"dtype": info.dtype, "shape": info.shape, "data_offsets": offsets}
    text = _compact(entries).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    block = len(text).to_bytes(8, "little") + text
    place = f'"header_digest":"{NO_DIGEST}"'
    digest = hashlib.sha256(block).hexdigest()
    return block.replace(place.encode(), place.replace(NO_DIGEST, digest).encode(), 1)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def is_scales(name: str) -> bool:
    """Whether a tensor holds the scales of a packed one."""
    return name.endswith(".scales")


def to_array(data: memoryview, dtype: str, shape: Sequence[int]) -> mx.array:
    """Bytes of a safetensors dtype -> an array of its own memory."""
    array = mx.array(np.frombuffer(data, dtype=NUMPY_DTYPES[dtype]).reshape(shape))
    return array.view(mx.bfloat16) if dtype == "BF16" else array


def to_bytes(array: mx.array) -> memoryview:
    """The bytes of an evaluated array, row by row."""
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.array(plain)).reshape(-1).view(np.uint8).data


def read_fully(stream: BinaryIO, view: memoryview) -> int:
    """Read until `view` is full or the file ends; returns the bytes read."""
    done = 0
    while done < len(view):
        count = os.readv(stream.fileno(), [view[done:]])
        if count == 0:
            break
        done += count
    return done


def write_fully(stream: BinaryIO, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`; raises OSError where the disk takes only a part."""
    view = memoryview(data)
    while view:
        count = os.pwrite(stream.fileno(), view, offset)
        view, offset = view[count:], offset + count
