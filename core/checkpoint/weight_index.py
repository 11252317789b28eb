"""Which files hold a checkpoint's weights: those of its index, or those that are there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ModelNotFound, TensorError, described
from ..json_values import parse_json, shown
from ..regular_files import read_text
from .listing import list_files, require_files
from .safetensors_headers import listing, read_header

INDEX_PATTERN = "*.safetensors.index.json"
LONGEST_NAME_BYTES = 255
"""Of one part of a path, on every file system in use."""


def weight_files(directory: Path, pattern: str = "*.safetensors") -> list[Path]:
    """The safetensors files of a checkpoint directory, sorted, whatever their names.

    pattern: what the reader of the data will open. Where there is an index, every shard that it
    lists must be there, and without a pattern of its own the reader opens just those.
    """
    found = list_files(directory, pattern)
    if not found or pattern != "*.safetensors":  # mlx-lm opens whatever has such a name
        require_files(directory, pattern)
    index = _indexed(directory)
    shards = set(index.values())
    missing = sorted(shard for shard in shards if not (directory / shard).is_file())
    if missing:
        _require_elsewhere(directory, index, missing, found)
        return found
    if shards and pattern == "*.safetensors":
        return [directory / shard for shard in sorted(shards)]
    if found:
        return found
    if others := [path.name for path in list_files(directory, "*.safetensors")]:
        raise ModelNotFound(
            f"{directory} has no weights that mlx-lm reads: it opens {pattern}, and there are only "
            f"{listing(others)}; rename them or fetch the converted checkpoint"
        )
    raise ModelNotFound(
        f"{directory} has no weights: no *.safetensors file is there; download them beside "
        "config.json"
    )


def index_note(directory: Path) -> str | None:
    """What to say of an index whose files are not all there, where nothing is lost by that."""
    shards = set(_indexed(directory).values())
    missing = sorted(shard for shard in shards if not (directory / shard).is_file())
    if not missing:
        return None
    return (
        f"{directory}: of the files that the index names, {listing(missing)} did not come with it; "
        "the others have all tensors of the model itself"
    )


def _require_elsewhere(
    directory: Path, index: Mapping[str, str], missing: list[str], found: Sequence[Path]
) -> None:
    """TensorError unless the files that are there hold what the index places in missing ones, but
    for an MTP head, which is a drafter's matter."""
    held = {name for file in found for name in read_header(file).tensors}
    lost = [name for name, shard in index.items() if shard in missing and name not in held]
    if found and all(is_mtp_name(name) for name in lost):
        return
    raise TensorError(
        f"{directory}: {len(missing)} weight files of the index are missing: "
        f"{listing(missing)}; the download is incomplete, fetch them"
    )


def is_mtp_name(name: str) -> bool:
    """Whether a tensor belongs to a target's MTP head, whatever stands in front."""
    return "mtp" in name.split(".")


def _indexed(directory: Path) -> dict[str, str]:
    """Tensor -> file name, of every *.safetensors.index.json; TensorError where one cannot be
    used."""
    index: dict[str, str] = {}
    require_files(directory, INDEX_PATTERN)
    for file in list_files(directory, INDEX_PATTERN):
        try:
            weight_map = parse_json(read_text(file))["weight_map"]
            index |= {name: require_inside(shard) for name, shard in weight_map.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise TensorError(
                f"{file} is not an index ({described(exc)}), expected an object with "
                "'weight_map'; fetch it again, or remove it where one file holds all weights"
            ) from exc
    return index


def require_inside(name: object) -> str:
    """A file's name that a checkpoint's own text states, where it stays inside the directory; a
    link that lies there may lead elsewhere, since its owner made it. ValueError says what is wrong.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"{shown(name)} is no file's name")
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or ":" in parts[0]:
        raise ValueError(f"{shown(name)} leads out of the directory")
    if any(len(os.fsencode(part)) > LONGEST_NAME_BYTES or "\0" in part for part in parts):
        raise ValueError(f"{shown(name)} is no file's name")
    return name
