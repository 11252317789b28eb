"""`--out DIR`: a slab and its config.json as a drafter of their own, for `--drafter DIR`.

The slab is named model.safetensors there, and config.json gains the `quantization` block by which
MLX tools know a packed checkpoint. Files of others are never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...core.atomic_files import write_whole
from ...core.checkpoint.listing import list_files
from ...core.errors import OutputExists, SlabError
from ...core.json_values import read_json
from .build import Plan
from .file_format import is_marked, open_slab

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


@contextmanager
def whole_export(directory: Path, plan: Plan, *, force: bool = False) -> Iterator[Path]:
    """Where the slab goes; afterwards the directory is a drafter, or, where an error is raised,
    nothing is left of what was made in between. Raises as prepare_export and finish_export."""
    was_there = directory.exists()
    path = prepare_export(directory, plan, force=force)
    before = _state(path)
    try:
        yield path
        finish_export(directory, plan)
    except BaseException:
        with suppress(OSError):
            if _state(path) != before:
                path.unlink()
            if not was_there:
                directory.rmdir()
        raise


def _state(path: Path) -> tuple[int, int] | None:
    """Which file it is; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def prepare_export(directory: Path, plan: Plan, *, force: bool = False) -> Path:
    """Where the slab goes in `directory`. Raises OutputExists where something else is there.

    A config.json of another packing goes first: a process that dies leaves a directory that does
    not open, never one whose config.json and weights disagree.
    """
    path = directory / WEIGHTS
    if directory.exists() and not directory.is_dir():
        raise OutputExists(f"{directory} is a file; give a directory to --out")
    others = {file.name for file in list_files(directory, "*.safetensors")} - {WEIGHTS}
    if others or (path.exists() and not is_marked(path)):
        name = min(others) if others else WEIGHTS
        raise OutputExists(
            f"{directory / name} is there and is not a slab; give another directory to --out"
        )
    config = directory / CONFIG
    if config.exists() and config.read_text(encoding="utf-8") != exported_config(plan):
        if not path.exists() or not (force or _is_packing_of(path, plan)):
            raise OutputExists(
                f"{directory} holds another drafter; give another directory to --out, or --force "
                "to replace a slab"
            )
        config.unlink()
    return path


def finish_export(directory: Path, plan: Plan) -> None:
    """Write config.json, which makes the directory a drafter.

    Raises SlabError where the weights are not what any reader of safetensors would open.
    """
    require_readable(directory / WEIGHTS, plan)
    text = exported_config(plan)
    config = directory / CONFIG
    if config.exists() and config.read_text(encoding="utf-8") == text:
        return
    write_whole(config, text.encode())


def require_readable(path: Path, plan: Plan) -> None:
    """Open the weights as other tools will: by the safetensors package, and not by our reader."""
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
    except SafetensorError as exc:
        raise SlabError(f"{path} is not a file that other tools can open: {exc}") from exc
    if names != set(plan.tensors):
        raise SlabError(f"{path} has {len(names)} tensors, expected {len(plan.tensors)}")


def exported_config(plan: Plan) -> str:
    """The source's config.json with the packing's block, under both names that tools read."""
    raw = read_json(plan.source.directory / CONFIG)
    block = {
        "group_size": plan.options.group_size,
        "bits": plan.options.bits,
        "mode": "affine",
    }
    return json.dumps({**raw, "quantization": block, "quantization_config": block}, indent=2) + "\n"


def _is_packing_of(path: Path, plan: Plan) -> bool:
    """Whether the slab there is one of this source, if perhaps an old one."""
    try:
        with open_slab(path) as slab:
            facts = slab.facts
            return facts.options == plan.options and plan.source.is_like(facts.source_files)
    except SlabError:
        return True  # damaged: nothing to lose
