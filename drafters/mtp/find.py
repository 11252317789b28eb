"""Where a target's MTP head is: told by tensor names in safetensors headers, never by config.json.

Looked for in the file that config.json names, in the target's shards, in side files, and in a
folder of its own. Published configs promise heads that are not there, and ship
heads without saying so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.checkpoint.bounds import check_bounds
from ...core.checkpoint.safetensors_headers import TensorInfo, read_header
from ...core.checkpoint.target_config import TargetConfig
from ...core.checkpoint.weight_index import require_inside, weight_files
from ...core.errors import (
    ConfigError,
    DflashError,
    DrafterMismatch,
    ModelNotFound,
    TensorError,
    UnsupportedModel,
)
from ...core.json_values import Fields, checked, read_json

PREFIXES = ("mtp.", "language_model.mtp.", "model.mtp.", "model.language_model.mtp.")
SIDE_FILES = (
    "mtp.safetensors",
    "mtp/weights.safetensors",
    "mtp/model.safetensors",
    "model-mtp.safetensors",
    "model-mtp-head.safetensors",
    "model_extra_tensors.safetensors",
)
MARKS = frozenset({"fc.weight", "pre_fc_norm_hidden.weight", "pre_fc_norm_embedding.weight"})
"""Bare names that every head has, and nothing else has together."""


@dataclass(frozen=True)
class Found:
    """One tensor: its name in the file, and its header entry."""

    stored_name: str
    info: TensorInfo


@dataclass(frozen=True)
class MtpSource:
    """A head that was found: `where` for messages, tensors by bare name (`layers.0. ...`), and
    the text config of its own folder, None where the target's holds."""

    where: Path
    tensors: Mapping[str, Found]
    text_config: Mapping[str, Any] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """What the head is read from: files of tensors, and the config.json of its own folder."""
        weights = sorted({found.info.file for found in self.tensors.values()})
        config = () if self.text_config is None else (self.where / "config.json",)
        return (*config, *weights)


def find_head(target: TargetConfig) -> MtpSource | None:
    """The head among the target's own files, None where there is none.

    Raises TensorError for a file with a bad header or a name that stands twice, ModelNotFound
    where config.json names a file that is not there.
    """
    directory = target.path
    declared = declared_file(target)
    side = [directory / name for name in SIDE_FILES]
    shards = [path for path in weight_files(directory) if path not in side and path != declared]
    places = [[declared]] if declared is not None else []
    for files in [*places, shards, *([path] for path in side if path.is_file())]:
        dedicated = files is not shards
        tensors = _gather(files, bare=dedicated)
        if tensors:
            return MtpSource(files[0] if dedicated else directory, tensors)
    return None


def open_folder(directory: Path, target: TargetConfig) -> MtpSource:
    """A head in a folder of its own, checked against the target's vocabulary and width.

    Raises ConfigError, TensorError, ModelNotFound, UnsupportedModel or DrafterMismatch.
    """
    file = directory / "config.json"
    raw = read_json(file)
    text = raw.get("text_config") or raw
    label = "" if text is raw else "text_config."
    checked("object", f"{file}: 'text_config'", text)
    check_bounds(file, {label: text})
    fields = Fields(file, ((label, text),))
    for key, expected in (("vocab_size", target.vocab_size), ("hidden_size", target.hidden_size)):
        found = fields.integer(key)
        if found != expected:
            raise DrafterMismatch(
                f"mtp head {key.replace('_', ' ').removesuffix(' size')} size {found} != target "
                f"{expected} ({file} against {target.file}); give the head of this target"
            )
    tensors = _gather(weight_files(directory), bare=True)
    if not tensors:
        raise UnsupportedModel(f"{directory} holds no MTP head: no {' or '.join(sorted(MARKS))}")
    return MtpSource(directory, tensors, text)


def is_head_folder(directory: Path) -> bool:
    """Does this checkpoint directory hold an MTP head and nothing else?

    Told by the names of its tensors; a target with an embedded head is not one.
    """
    try:
        headers = [read_header(path).tensors for path in weight_files(directory)]
    except DflashError:
        return False
    names = {name for tensors in headers for name in tensors}
    bare = {_bare(name) or name for name in names}
    return bare >= MARKS and not any("embed_tokens" in name for name in names)


def absence(target: TargetConfig) -> str:
    """Why there is no head, for a target in which none was found."""
    text = target.raw.get("text_config") or {}
    keys = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    promised = [key for key in keys if text.get(key) or target.raw.get(key)]
    foreign = f"layers.{target.num_hidden_layers}."
    names = (name for path in weight_files(target.path) for name in read_header(path).tensors)
    if any(foreign in name for name in names):
        return (
            f"{target.path} holds tensors of a layer {target.num_hidden_layers} beyond its last; "
            "an MTP head is read only under 'mtp.' names, so convert it to those"
        )
    if promised:
        return (
            f"{target.file} promises an MTP head ('{promised[0]}'), but no 'mtp.*' tensor is in "
            f"{target.path}: conversion drops them. Take the original repository's 'mtp.*' "
            "tensors into a file mtp.safetensors beside the weights"
        )
    return f"{target.path} has no MTP head (no 'mtp.*' tensor in any file)"


def declared_file(target: TargetConfig) -> Path | None:
    """The file that `mlx_lm_extra_tensors.mtp_file` names, inside the checkpoint."""
    extra = target.raw.get("mlx_lm_extra_tensors")
    name = extra.get("mtp_file") if isinstance(extra, dict) else None
    if not isinstance(name, str):
        return None
    try:
        path = target.path / require_inside(name)
    except ValueError as exc:
        raise ConfigError(
            f"{target.file}: 'mlx_lm_extra_tensors.mtp_file': {exc}; take the key out"
        ) from exc
    if not path.is_file():
        raise ModelNotFound(
            f"{target.file}: 'mlx_lm_extra_tensors.mtp_file' names {name}, which is not a file of "
            f"{target.path}; fetch it, or take the key out"
        )
    return path


def _gather(files: Iterable[Path], bare: bool) -> dict[str, Found]:
    """Head tensors by bare name; `bare` files may hold them without a prefix."""
    gathered: dict[str, Found] = {}
    for path in files:
        tensors = read_header(path).tensors
        unprefixed = bare and tensors.keys() >= MARKS
        for name, info in tensors.items():
            key = name if unprefixed else _bare(name)
            if key is None:
                continue
            if key in gathered:
                raise TensorError(
                    f"the MTP head's tensor {key} is in both {gathered[key].info.file} "
                    f"({gathered[key].stored_name}) and {path} ({name}): keep one of them"
                )
            gathered[key] = Found(name, info)
    return gathered


def _bare(name: str) -> str | None:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return None
