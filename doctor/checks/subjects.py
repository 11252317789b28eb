"""What the checks look at: one target, one drafter, both; everything read once, headers at most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.checkpoint import dry_load as bones
from ...core.checkpoint.safetensors_headers import (
    TARGET_PATTERN,
    Header,
    TensorInfo,
    merge_headers,
    read_header,
)
from ...core.checkpoint.target_config import TargetConfig, read_target_config, refuse_other_kinds
from ...core.checkpoint.weight_index import weight_files
from ...core.errors import ConfigError, DflashError
from ...core.json_values import read_json
from ...drafters.dflash.config import CONTRADICTIONS, DrafterConfig, parse_drafter_config
from ...drafters.dflash.container import classify
from ...drafters.dflash.drafter import DFlashModel
from ...drafters.dflash.load import expected_shapes, with_biases
from ...drafters.dflash.tensors import check_tensors
from ...drafters.guards import check_is_target
from ..results import NotReached
from .machine import Machine
from .once import once, reach
from .tokenizer import TokenizerFiles

if TYPE_CHECKING:
    from ...core.loading.tokenizer import OpenedTokenizer
    from ...core.target.target import Target


class Checkpoint:
    """One directory. is_mirror: it stands in for a hub repository, with headers alone."""

    pattern = "*.safetensors"

    def __init__(self, directory: Path, machine: Machine, is_mirror: bool = False) -> None:
        self.directory = directory
        self.machine = machine
        self.is_mirror = is_mirror
        self.tokenizer = TokenizerFiles(directory)

    @property
    def file(self) -> Path:
        """Its config.json."""
        return self.directory / "config.json"

    @once
    def raw(self) -> Mapping[str, Any]:
        """config.json as it stands. Raises ModelNotFound, ConfigError, UnsupportedModel (GGUF)."""
        refuse_other_kinds(self.directory)
        return read_json(self.file)

    @once
    def kind(self) -> str:
        """What it is, by its config.json. Raises UnsupportedModel or ConfigError."""
        raise NotImplementedError

    @once
    def files(self) -> list[Path]:
        """The weight files that the loader would open. Raises ModelNotFound or TensorError."""
        reach(self.kind)
        return weight_files(self.directory, self.pattern)

    @once
    def headers(self) -> list[Header]:
        """Their headers, checked against the files' sizes. Raises TensorError."""
        return [read_header(file) for file in self.files]

    @once
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name. Raises TensorError for a name that stands twice."""
        return merge_headers(self.headers)


class TargetSubject(Checkpoint):
    """A target's directory."""

    pattern = TARGET_PATTERN

    @once
    def kind(self) -> str:
        """Its model_type, a supported one. Raises UnsupportedModel or ConfigError."""
        return check_is_target(self.raw, self.file)

    @once
    def config(self) -> TargetConfig:
        """What the loader reads of it. Raises ConfigError."""
        reach(self.kind)
        return read_target_config(self.directory)

    @once
    def opened_tokenizer(self) -> OpenedTokenizer:
        """What the loader makes of its tokenizer files. Raises CheckpointError, ModelNotFound."""
        from ...core.loading.tokenizer import open_tokenizer  # a second of import

        return open_tokenizer(self.config)

    @once
    def model(self) -> Any:
        """mlx-lm's model with placeholder parameters. Raises ConfigError."""
        return bones.build_model(self.config)

    @once
    def skeleton(self) -> bones.Skeleton:
        """The same with the files' tensors beside it. Raises TensorError."""
        reach(self.tensors, self.model)
        if bones.states_other_packing(self.config):
            from ...core.loading.load import load_lazily  # a second of import, where it is needed

            return bones.Skeleton(self.config, load_lazily(self.config), {}, is_filled=True)
        return bones.sanitize(self.config, self.model, self.files)

    @once
    def quantized(self) -> bones.Skeleton:
        """The same with its modules quantized as the files are. Raises CheckpointError."""
        bones.quantize(self.skeleton)
        return self.skeleton

    @once
    def filled(self) -> bones.Skeleton:
        """The same with every tensor in its place. Raises TensorError."""
        bones.fill(self.quantized)
        return self.quantized

    @once
    def traced(self) -> Target:
        """The same behind the suite's forward, every pass of the loader's check put together, none
        computed. Raises CheckpointError, UnsupportedModel or ForwardMismatch."""
        from ...core.loading.load import put_behind_forward  # a second of import
        from ...core.target.forward_check import trace_forward

        target = put_behind_forward(self.filled.model, self.config)
        trace_forward(target)
        return target


class DrafterSubject(Checkpoint):
    """A drafter's directory. verify: read a slab's data too."""

    def __init__(
        self, directory: Path, machine: Machine, is_mirror: bool = False, verify: bool = False
    ) -> None:
        super().__init__(directory, machine, is_mirror)
        self.verify = verify

    @once
    def kind(self) -> str:
        """`dflash` or `dflash2`. Raises UnsupportedModel or ConfigError."""
        return classify(self.raw, self.file)

    @once
    def parsed(self) -> DrafterConfig:
        """The typed values of config.json. Raises ConfigError or UnsupportedModel."""
        reach(self.kind)
        return parse_drafter_config(self.directory)

    @once
    def config(self) -> DrafterConfig:
        """The same without contradictions, which have their own checks: not reached with one."""
        for contradiction in CONTRADICTIONS:
            try:
                contradiction(self.parsed)
            except ConfigError as error:
                raise NotReached(str(error)) from error
        return self.parsed

    @property
    def known_kind(self) -> str | None:
        """Its kind, None where that failed."""
        try:
            return self.kind
        except (DflashError, NotReached):
            return None

    @once
    def resolved(self) -> DrafterConfig:
        """The config with the biases that the file has, all tensors accounted for.

        Raises TensorError.
        """
        config = with_biases(self.config, self.tensors)
        check_tensors(config, self.tensors, expected_shapes(DFlashModel(config)))
        return config


class PairSubject:
    """A target with its drafter."""

    def __init__(self, target: TargetSubject, drafter: DrafterSubject) -> None:
        self.target = target
        self.drafter = drafter


def is_drafter(directory: Path) -> bool:
    """Whether a directory holds a DFlash drafter, as its config.json says."""
    file = directory / "config.json"
    try:
        return bool(classify(read_json(file), file))
    except DflashError:
        return False
