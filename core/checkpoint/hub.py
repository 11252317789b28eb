"""Where a model reference leads: a local directory, or a hub id's snapshot.

The hub client keeps the cache, resumes a broken transfer and checks sizes; it reads HF_ENDPOINT,
HF_HOME and HF_HUB_OFFLINE itself.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelNotFound, described
from ..settings import user_path
from .target_config import refuse_gguf

DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken")
NOT_DOWNLOADED = ("original/*", "metal/*", "onnx/*")
"""Second copies of the weights in other formats."""


def resolve_directory(reference: str) -> Path:
    """A local directory, or the snapshot of a hub id (downloaded, or from the local hub cache)."""
    return local_directory(reference) or _download(reference)


def local_directory(reference: str) -> Path | None:
    """The directory that a reference names, None for a hub id; ModelNotFound for anything else."""
    if "\0" in reference:
        raise ModelNotFound(f"{reference!r} is neither a directory nor a hub id")
    path = user_path(reference)
    if path.is_dir():
        return path
    refuse_gguf(path)
    if path.exists():
        raise ModelNotFound(f"{path} is a file; give the directory that holds config.json")
    if reference.count("/") != 1 or reference.startswith((".", "~", "/")):
        raise ModelNotFound(
            f"{reference} is neither a directory here nor a hub id of the form owner/name"
        )
    return None


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                repository,
                allow_patterns=list(DOWNLOADED),
                ignore_patterns=list(NOT_DOWNLOADED),
            )
        )
    except Exception as exc:  # the client's errors, its HTTP library's (two of them), the disk's
        raise ModelNotFound(
            f"hub id {repository} could not be fetched ({described(exc)}); check the "
            "name and the network and try again (what arrived whole is kept), or give a directory"
        ) from exc
