"""A hub repository opened for its headers: the files are true in name, size and header.

Small files (JSON, templates, tokenizers) are fetched into the hub's cache; of a *.safetensors file
only its header is, by range requests, into a sparse file of the true size. So every check reads a
directory, wherever the checkpoint is. What the local hub cache holds whole is read there, and
where the hub cannot be reached the cache is read as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ..core.checkpoint.hub import (
    DOWNLOADED,
    NOT_DOWNLOADED,
    HubId,
    advice,
    cached_snapshot,
    local_or_hub,
)
from ..core.checkpoint.listing import list_tree
from ..core.checkpoint.safetensors_headers import MAX_HEADER_BYTES
from ..core.checkpoint.weight_index import require_inside, weight_files
from ..core.errors import ModelNotFound, TensorError, described
from ..drafters.bundled.paths import bundled_directory
from .checks.download import Download
from .checks.machine import free_bytes

WORKERS = 8
FIRST_BYTES = 100_000
"""Most headers are smaller, and one request then reads the whole header."""
SMALL_FILE_BYTES = 200_000_000
"""Anything larger that is not a safetensors file is left out."""


@dataclass(frozen=True)
class Opened:
    """is_mirror: a stand-in with sparse weight files, gone when it is closed."""

    path: Path
    is_mirror: bool = False


@contextmanager
def opened(reference: str) -> Iterator[Opened]:
    """The directory of a reference, as locate() finds it, without downloading weights.

    Raises ModelNotFound for a name that leads nowhere, TensorError for a file without a header.
    """
    found = bundled_directory(reference) or local_or_hub(reference)
    if isinstance(found, Path):
        yield Opened(found)
        return
    from huggingface_hub import snapshot_download

    cached = cached_snapshot(snapshot_download, found)
    if cached is not None and _is_whole(cached):
        yield Opened(cached)
        return
    with tempfile.TemporaryDirectory(prefix="dflash-doctor-") as name:
        unreachable = _mirror(found, Path(name))
        if unreachable is None:
            yield Opened(Path(name), is_mirror=True)
        elif cached is not None:
            yield Opened(cached)
        else:
            raise unreachable


def _is_whole(snapshot: Path) -> bool:
    """config.json and every weight file of the index are there."""
    try:
        return bool(weight_files(snapshot)) and (snapshot / "config.json").is_file()
    except (ModelNotFound, TensorError):
        return False


def _mirror(wanted: HubId, directory: Path) -> ModelNotFound | None:
    """Fill `directory` with the repository's small files and sparse weight files.

    Returns the error where the hub does not have it or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    http_error: Any = HfHubHTTPError.__bases__[0]  # of whichever httpx the hub's library uses
    try:
        info = HfApi().model_info(wanted.name, revision=wanted.revision, files_metadata=True)
        revision = info.sha or wanted.revision or "main"
        sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
        names = [name for name in sizes if is_wanted(name, sizes[name])]
        with ThreadPoolExecutor(WORKERS) as pool:
            jobs = [
                pool.submit(_fetch, wanted.name, revision, name, sizes[name], directory / name)
                for name in names
            ]
            for job in jobs:
                job.result()
    except (http_error, OSError) as exc:
        return ModelNotFound(f"hub id {wanted} could not be read ({described(exc)}); {advice(exc)}")
    return None


def is_wanted(name: str, size: int) -> bool:
    """Whether a file of a repository is looked at; one whose name leads elsewhere never is."""
    try:
        require_inside(name)
    except ValueError:
        return False
    if any(fnmatch(name, pattern) for pattern in NOT_DOWNLOADED):
        return False
    if name.endswith(".safetensors"):
        return True
    return size <= SMALL_FILE_BYTES and any(fnmatch(name, pattern) for pattern in DOWNLOADED)


def _fetch(repository: str, revision: str, name: str, size: int, path: Path) -> None:
    from huggingface_hub import hf_hub_download

    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".safetensors"):
        header = _read_header(repository, revision, name)
        path.write_bytes(header)
        with path.open("r+b") as stream:
            stream.truncate(max(size, len(header)))
    else:
        path.symlink_to(hf_hub_download(repository, name, revision=revision))


def _read_header(repository: str, revision: str, name: str) -> bytes:
    """The first bytes of a remote file, up to where its data starts."""
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repository, name, revision=revision)
    first = _read_range(url, 0, FIRST_BYTES)
    stop = 8 + int.from_bytes(first[:8], "little")
    if len(first) < 8 or stop > MAX_HEADER_BYTES:
        raise TensorError(
            f"{repository}/{name} has no safetensors header; the repository is broken, take another"
        )
    return first[:stop] if stop <= len(first) else first + _read_range(url, len(first), stop)


def _read_range(url: str, start: int, stop: int) -> bytes:
    """Bytes start..stop of a remote file, fewer at its end; never more, whatever is sent."""
    import huggingface_hub.utils

    hub: Any = huggingface_hub.utils  # its stubs hide these three, its documentation does not
    headers = {**hub.build_hf_headers(), "Range": f"bytes={start}-{stop - 1}"}
    received = bytearray()
    with hub.get_session().stream("GET", url, headers=headers) as response:
        hub.hf_raise_for_status(response)
        for chunk in response.iter_bytes():
            received += chunk
            if len(received) >= stop - start:
                break
    return bytes(received[: stop - start])


def expected_download(mirrors: Sequence[Path]) -> Download:
    """What the weights behind mirrors take, and the room in the hub's cache."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE)
    weights = (file for mirror in mirrors for file in list_tree(mirror, "*.safetensors"))
    needed = sum(file.stat().st_size for file in weights)
    return Download(needed, free_bytes(place), str(place))


def renamed(text: str, places: Sequence[tuple[Path, str]]) -> str:
    """A finding's text with the user's own names for directories that stand in for them."""
    for directory, name in places:
        text = text.replace(str(directory), name)
    return text
