"""A tiny sound pair for the doctor, and a machine on which nothing is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_suite.doctor.checks.machine import Machine
from dflash_suite.doctor.diagnose import diagnose
from dflash_suite.doctor.results import CheckResult, Diagnosis
from tests.kit.tiny import Kind, save_checkpoint
from tests.kit.tiny_drafter import save_drafter
from tests.kit.tiny_mtp import head_tensors, prefixed

SOUND = Machine(
    versions={"mlx": "0.32.4", "mlx-lm": "0.32.2"},
    device="Apple M3 Ultra",
    backend="metal",
    has_idle_gpu=False,
    reference_blas=None,
    memory_bytes=500_000_000_000,
    disk_free_bytes=500_000_000_000,
    disk_path=Path("/cache"),
    script_owners=("dflash-suite",),
)


def save_pair(directory: Path, kind: Kind = "hybrid") -> Path:
    """A tiny target with a chat template, an MTP head in a side file where its family has one,
    and a DFlash2 drafter in its `drafter` folder."""
    save_checkpoint(directory, kind)
    if kind == "hybrid":
        save_head(directory)
    edit_json(directory / "tokenizer_config.json", {"chat_template": "{{ messages }}"})
    save_drafter(directory / "drafter")
    return directory


def save_head(directory: Path) -> None:
    """An MTP head as converters keep it: norms as they are, in mtp.safetensors."""
    tensors = prefixed(head_tensors(hf=False))
    mx.save_safetensors(str(directory / "mtp.safetensors"), tensors, metadata={"format": "mlx"})


def edit_json(file: Path, changes: Mapping[str, Any], *, drop: str | None = None) -> None:
    """Set keys of a JSON file; `drop` takes one out."""
    value = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    value.update(changes)
    if drop is not None:
        del value[drop]
    file.write_text(json.dumps(value), encoding="utf-8")


def edit_text_config(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a target's nested text_config."""
    file = directory / "config.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    edit(raw["text_config"])
    file.write_text(json.dumps(raw), encoding="utf-8")


def look(
    model: Path, drafter: Path | None = None, machine: Machine = SOUND, verify: bool = False
) -> Diagnosis:
    """Diagnose directories."""
    return diagnose(str(model), None if drafter is None else str(drafter), machine, verify)


def troubles(diagnosis: Diagnosis) -> dict[str, CheckResult]:
    """What did not pass, by name."""
    return {check.name: check for check in diagnosis.checks if check.status != "pass"}
