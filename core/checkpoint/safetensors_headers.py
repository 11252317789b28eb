"""safetensors headers, checked before any data is read.

Reads the first 8 bytes and the JSON header of a file; tensor data is never touched here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import TensorError, why_refused
from ..json_values import are_whole, parse_json, shown
from ..regular_files import open_regular

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
TARGET_PATTERN = "model*.safetensors"
"""The files of a target that mlx-lm's loader reads."""
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit on a header."""


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a header; `start` and `stop` are byte offsets into the file's data part."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """A checked header: `data_start` is the absolute byte where tensor data begins.

    block: the file's first data_start bytes, as they were read; text and numbers come from them.
    """

    file: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int
    file_bytes: int
    block: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """sha256 of the header, its length included."""
        return hashlib.sha256(self.block).hexdigest()


def read_header(file: Path) -> Header:
    """Read and check one header; not a byte more than the header is read.

    Raises TensorError for a truncated file, a bad header, an unknown dtype, and for offsets that
    are misordered, overlapping, outside the file or not those of the shape.
    """
    try:
        with open_regular(file) as stream:
            block, size = read_header_block(stream, file)
    except OSError as exc:
        raise TensorError(f"{file} cannot be read: {why_refused(exc, 'fetch it again')}") from exc
    return parse_header(file, block, size)


def read_header_block(stream: BinaryIO, file: Path) -> tuple[bytes, int]:
    """(length and JSON text, size of the file) of an open file whose position is 0."""
    size = os.fstat(stream.fileno()).st_size
    if size <= 8:
        raise TensorError(f"{file} is {size} bytes, too small for safetensors; fetch it again")
    prefix = stream.read(8)
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise TensorError(
            f"{file} announces a header of {length} bytes in a file of {size}: it is truncated or "
            "no safetensors file; fetch it again"
        )
    return prefix + stream.read(length), size


def parse_header(file: Path, block: bytes, size: int) -> Header:
    """Check what read_header_block returned; `size` is the file's, in bytes."""
    try:
        entries = parse_json(block[8:])
    except ValueError as exc:
        raise TensorError(f"{file} has a header that is not JSON ({exc}); fetch it again") from exc
    if not isinstance(entries, dict):
        raise TensorError(f"{file} has a header that is not a JSON object; fetch it again")
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise TensorError(f"{file} has a __metadata__ that is not a JSON object; fetch it again")
    data_start = len(block)
    tensors = {
        name: _tensor(file, name, entry, size - data_start) for name, entry in entries.items()
    }
    _check_no_overlap(file, tensors)
    return Header(file, tensors, metadata, data_start, size, block)


def _tensor(file: Path, name: str, entry: Any, data_bytes: int) -> TensorInfo:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if (
        not isinstance(dtype, str)
        or not are_whole(shape)
        or not are_whole(offsets)
        or len(offsets) != 2
        or max(*offsets, *shape) >= 2**63
    ):
        raise TensorError(
            f"{file}: the entry of tensor {name} is {shown(entry)}, expected dtype, shape and two "
            "data_offsets"
        )
    start, stop = offsets
    if dtype not in ITEM_BYTES:
        raise TensorError(f"{file}: tensor {name} has the unknown dtype {dtype}")
    expected = ITEM_BYTES[dtype]
    for dim in shape:
        expected *= dim
    if min((start, *shape), default=start) < 0 or stop - start != expected:
        raise TensorError(
            f"{file}: tensor {name} takes bytes {start}..{stop}, but {dtype} of shape "
            f"{list(shape)} is {expected} bytes"
        )
    if stop > data_bytes:
        raise TensorError(
            f"{file}: tensor {name} ends at byte {stop} of the data, but only {data_bytes} are "
            "there: the file is truncated; fetch it again"
        )
    return TensorInfo(file, dtype, tuple(shape), start, stop)


def _check_no_overlap(file: Path, tensors: dict[str, TensorInfo]) -> None:
    ordered = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop))
    for (name, info), (other, following) in zip(ordered, ordered[1:], strict=False):
        if following.start < info.stop:
            raise TensorError(
                f"{file}: tensors {name} and {other} overlap at byte {following.start} of the data"
            )


def read_headers(files: list[Path]) -> dict[str, TensorInfo]:
    """All tensors of several files; a name that stands in two of them is a TensorError."""
    return merge_headers(read_header(file) for file in files)


def merge_headers(headers: Iterable[Header]) -> dict[str, TensorInfo]:
    """As read_headers, from headers that were read; no tensor in any is a TensorError too."""
    merged: dict[str, TensorInfo] = {}
    files: list[Path] = []
    for header in headers:
        files.append(header.file)
        for name, info in header.tensors.items():
            if name in merged:
                raise TensorError(
                    f"tensor {name} is in both {merged[name].file} and {header.file}: keep one of "
                    "them"
                )
            merged[name] = info
    if files and not merged:
        raise TensorError(
            f"{listing([str(file) for file in files])}: there is a header, and no tensor in it; "
            "fetch the weights again"
        )
    return merged


def listing(lines: list[str], limit: int = 10) -> str:
    """At most `limit` entries, then how many more there are."""
    rest = len(lines) - limit
    return ", ".join(lines[:limit]) + (f" and {rest} more" if rest > 0 else "")
