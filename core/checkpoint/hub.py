"""Where a model reference leads: a local directory, or a hub id's snapshot.

The hub client keeps the cache, resumes a broken transfer and checks sizes; it reads HF_ENDPOINT,
HF_HOME and HF_HUB_OFFLINE itself.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DflashError, ModelNotFound, described
from ..settings import user_path
from .target_config import refuse_other_kinds
from .weight_index import weight_files

DOWNLOADED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken")
NOT_DOWNLOADED = ("[!m]*/*", "m[!t]*/*", "mt[!p]*/*", "mtp?*/*")
"""Every folder but `mtp`, where some repositories have the MTP head: the others hold second copies
of the weights. mlx-lm downloads no folder either."""
PAGE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://")
ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
REVISION_PATHS = ("tree", "blob", "resolve", "commit")


@dataclass(frozen=True)
class HubId:
    """A repository of the hub; revision: a branch, a tag or a commit, None for the main branch."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def hub_id(reference: str) -> HubId | None:
    """`owner/name`, `owner/name@revision` or the address of a page of the hub; None otherwise."""
    page = PAGE.match(reference)
    if page is not None:
        parts = reference[page.end() :].partition("?")[0].partition("#")[0].strip("/").split("/")
        if len(parts) > 3 and parts[2] in REVISION_PATHS:
            parts[1] += f"@{parts[3]}"
        reference = "/".join(parts[:2])
    found = ID.fullmatch(reference)
    if found is None or reference.startswith((".", "~", "/")):
        return None
    return HubId(found["name"], found["revision"])


def resolve_directory(reference: str) -> Path:
    """A local directory, or the snapshot of a hub id (downloaded, or from the local hub cache)."""
    found = local_or_hub(reference)
    return _download(found) if isinstance(found, HubId) else found


def local_or_hub(reference: str) -> Path | HubId:
    """The directory that a reference names, or the hub id; ModelNotFound for anything else."""
    if "\0" in reference:
        raise ModelNotFound(f"{reference!r} is neither a directory nor a hub id")
    path = user_path(reference)
    if path.is_dir():
        return path
    refuse_other_kinds(path)
    if path.exists():
        raise ModelNotFound(f"{path} is a file; give the directory that holds config.json")
    found = hub_id(reference)
    if found is None:
        raise ModelNotFound(
            f"{reference} is neither a directory here nor a hub id of the form owner/name or "
            "owner/name@revision"
        )
    return found


def _download(wanted: HubId) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                wanted.name,
                revision=wanted.revision,
                allow_patterns=list(DOWNLOADED),
                ignore_patterns=list(NOT_DOWNLOADED),
            )
        )
    except Exception as exc:  # the client's errors, its HTTP library's (two of them), the disk's
        held = _held(wanted)
        if held is not None:
            return held
        raise ModelNotFound(
            f"hub id {wanted} could not be fetched ({described(exc)}); {advice(exc)}"
        ) from exc


def _held(wanted: HubId) -> Path | None:
    """A snapshot in the local hub cache that has all that a model needs, whoever downloaded it."""
    from huggingface_hub import snapshot_download

    found = cached_snapshot(snapshot_download, wanted)
    try:
        whole = found is not None and bool(weight_files(found))
    except DflashError:
        return None
    return found if whole and found is not None and (found / "config.json").is_file() else None


def cached_snapshot(snapshot_download: Any, wanted: HubId) -> Path | None:
    """The snapshot in the local hub cache, whole or not; None where there is none."""
    try:
        return Path(snapshot_download(wanted.name, revision=wanted.revision, local_files_only=True))
    except Exception:  # the client's own, of several kinds: there is none
        return None


def advice(exc: BaseException) -> str:
    """What to do about a download that failed."""
    if _errno(exc) == errno.ENOSPC:
        return "make room on the disk that holds the hub's cache, or set HF_HOME to another"
    for one in KINDS:
        if type(exc).__name__ in one:
            return KINDS[one]
    return (
        "check the name and the network and try again (what arrived whole is kept), or give a "
        "directory"
    )


KINDS: Mapping[tuple[str, ...], str] = {
    ("GatedRepoError",): "the owner grants access: ask for it on the repository's page, then log "
    "in with `hf auth login`, or set HF_TOKEN",
    ("RevisionNotFoundError",): "the repository has no such revision: give a branch, a tag or a "
    "commit that it has, or leave @revision out",
    ("RepositoryNotFoundError",): "check the name; for a private repository log in with `hf auth "
    "login`, or set HF_TOKEN; or give a directory",
}
"""The client's errors, by name, since it is imported only where it is used."""


def _errno(exc: BaseException | None) -> int | None:
    """The operating system's number of an error, or of what it came from."""
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno is not None:
            return exc.errno
        exc = exc.__cause__ or exc.__context__
    return None
