"""What a slab is made from: a checkpoint's weight files, known by a quick key or by content.

The quick key costs one header a file; the content hash reads everything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TensorError
from ..regular_files import open_regular
from .safetensors_headers import Header, TensorInfo, merge_headers, read_header
from .weight_index import weight_files

if TYPE_CHECKING:
    import mlx.core as mx

ByteProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

CHUNK_BYTES = 32 * 2**20
"""Most bytes of a file that are held at once."""


@dataclass(frozen=True)
class SourceFile:
    """The quick key of one file. header_digest: sha256 of the safetensors header."""

    name: str
    size_bytes: int
    mtime_ns: int
    header_digest: str

    def is_like(self, other: SourceFile) -> bool:
        """Whether the content can still be the same, whatever name and time say."""
        return (self.size_bytes, self.header_digest) == (other.size_bytes, other.header_digest)


@dataclass(frozen=True)
class Source:
    """The weight files of a drafter, headers read and checked, data untouched."""

    directory: Path
    headers: tuple[Header, ...]
    files: tuple[SourceFile, ...]
    tensors: dict[str, TensorInfo]

    @property
    def size_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def is_quantized(self) -> bool:
        """Whether the file already holds packed weights."""
        return any(name.endswith(".scales") for name in self.tensors)

    def is_like(self, files: Sequence[SourceFile]) -> bool:
        """Whether `files` can be these very contents: as many, same sizes, same headers."""
        return len(files) == len(self.files) and all(
            mine.is_like(other) for mine, other in zip(self.files, files, strict=True)
        )


def read_source(directory: Path) -> Source:
    """Read the headers of every weight file. Raises ModelNotFound or TensorError."""
    headers, files = [], []
    for path in weight_files(directory):
        state = path.stat()
        header = read_header(path)
        headers.append(header)
        files.append(SourceFile(path.name, state.st_size, state.st_mtime_ns, header.digest))
    return Source(directory, tuple(headers), tuple(files), merge_headers(headers))


def load_arrays(file: Path) -> dict[str, mx.array]:
    """Every tensor of a safetensors file by its name; lazily, no data is read yet.

    Raises TensorError where MLX cannot read the file.
    """
    import mlx.core as mx  # the rest of this module needs no device

    try:
        arrays: Any = mx.load(str(file))
    except RuntimeError as exc:  # its JSON reader is stricter than Python's
        raise TensorError(f"{file} could not be read: {exc}; fetch it again") from exc
    return dict(arrays)


def content_hash(source: Source, progress: ByteProgress | None = None) -> str:
    """sha256 over the files' own sha256, in name order; reads every byte."""
    done, digests = 0, []
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for header in source.headers:
        digest = hashlib.sha256()
        with open_regular(header.file) as stream:
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
                done += count
                if progress:
                    progress(done, source.size_bytes)
        digests.append(digest.hexdigest())
    return join_digests(digests)


def join_digests(digests: Sequence[str]) -> str:
    """One content hash of several files, whatever their names."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
