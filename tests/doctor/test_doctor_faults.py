"""One planted fault for every check of the doctor, which that check alone reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.doctor.checks.drafter import DRAFTER_CHECKS
from dflash_suite.doctor.checks.machine import MACHINE_CHECKS
from dflash_suite.doctor.checks.mtp import MTP_CHECKS
from dflash_suite.doctor.checks.pair import PAIR_CHECKS
from dflash_suite.doctor.checks.target import TARGET_CHECKS
from dflash_suite.doctor.diagnose import NO_DRAFTER
from dflash_suite.doctor.results import Status
from dflash_suite.drafters.slab.file_format import MARK
from tests.kit.doctor_pairs import SOUND, edit_json, edit_text_config, look, save_pair, troubles
from tests.kit.tiny import Kind
from tests.kit.tiny_drafter import raw_drafter, save_drafter, write_config

NAMES = [
    *(check.words.name for check in MACHINE_CHECKS),
    *(check.words.name for check in TARGET_CHECKS),
    *(check.words.name for check in DRAFTER_CHECKS),
    *(check.words.name for check in PAIR_CHECKS),
    *(check.words.name for check in MTP_CHECKS),
    NO_DRAFTER.name,
]


@dataclass(frozen=True)
class Fault:
    """plant changes the pair's directory; machine: what is otherwise about the computer."""

    name: str
    status: Status
    found: str
    plant: Callable[[Path], object] = lambda directory: None
    machine: dict[str, Any] | None = None
    target: Kind = "hybrid"


def drafter_like(**changes: Any) -> Callable[[Path], object]:
    """A drafter of another config.json, with the tensors that it asks for."""
    return lambda pair: save_drafter(pair / "drafter", raw_drafter(**changes))


def drafter_says(**changes: Any) -> Callable[[Path], object]:
    """Another config.json over the same tensors."""
    return lambda pair: write_config(pair / "drafter", raw_drafter(**changes))


def shorten(file: str) -> Callable[[Path], object]:
    """A file that lost its last bytes."""

    def cut(pair: Path) -> None:
        os.truncate(pair / file, (pair / file).stat().st_size - 8)

    return cut


def without_tensor(file: str, name: str) -> Callable[[Path], object]:
    """A file that lost one tensor."""

    def drop(pair: Path) -> None:
        arrays = mx.load(str(pair / file))
        assert isinstance(arrays, dict)
        del arrays[name]
        mx.eval(arrays)
        mx.save_safetensors(str(pair / file), arrays, metadata={"format": "mlx"})

    return drop


def misplace(pair: Path) -> None:
    """An index that has one tensor in a shard where it is not."""
    first, second = sorted(_split(pair))
    names = {name: file for file in (first, second) for name in _names(pair / file)}
    names["language_model.model.norm.weight"] = next(
        file for file in (first, second) if names["language_model.model.norm.weight"] != file
    )
    edit_json(pair / "model.safetensors.index.json", {"weight_map": names})


def _split(pair: Path) -> list[str]:
    arrays = mx.load(str(pair / "model.safetensors"))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    (pair / "model.safetensors").unlink()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = sorted(arrays)
    for file, part in zip(files, (names[:9], names[9:]), strict=True):
        mx.save_safetensors(str(pair / file), {name: arrays[name] for name in part})
    return files


def _names(file: Path) -> list[str]:
    arrays = mx.load(str(file))
    assert isinstance(arrays, dict)
    return list(arrays)


def missing_shard(pair: Path) -> None:
    """The index knows a second shard that is not there, with a tensor that is nowhere else."""
    names = dict.fromkeys(_names(pair / "model.safetensors"), "model.safetensors")
    names["language_model.model.lost.weight"] = "model-00002-of-00002.safetensors"
    edit_json(pair / "model.safetensors.index.json", {"weight_map": names})


def flat_rope(pair: Path) -> None:
    """Intel's conversion: the base outside rope_parameters."""
    edit_text_config(
        pair, lambda text: text.update(rope_theta=text.pop("rope_parameters")["rope_theta"])
    )


def without_eos(pair: Path) -> None:
    """Neither config.json nor the tokenizer knows an end."""
    edit_json(pair / "config.json", {}, drop="eos_token_id")
    edit_json(pair / "tokenizer_config.json", {}, drop="eos_token")


def mixed_head(pair: Path) -> None:
    """A converter added one to all norms but those of queries and keys."""
    file = str(pair / "mtp.safetensors")
    arrays = mx.load(file)
    assert isinstance(arrays, dict)
    arrays |= {name: array - 1 for name, array in arrays.items() if ".self_attn." in name
               and "_norm" in name}  # fmt: skip
    mx.eval(arrays)
    mx.save_safetensors(file, arrays)


def swapped_ids(pair: Path) -> None:
    """The drafter brings a tokenizer in which two ids are exchanged."""
    whole = json.loads((pair / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = whole["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    (pair / "drafter" / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")


WEIGHTS, DRAFTER_WEIGHTS = "model.safetensors", "drafter/model.safetensors"
FAULTS = [
    Fault("machine.versions", "warn", "mlx 0.32.1", machine={"versions": {"mlx": "0.32.1"}}),
    Fault("machine.versions", "warn", "mlx-lm missing", machine={"versions": {"mlx-lm": None}}),
    Fault("machine.device", "warn", "GPU is there and not used", machine={"has_idle_gpu": True}),
    Fault("machine.blas", "warn", "libblas.so", machine={"reference_blas": "libblas.so"}),
    Fault("machine.script", "warn", "dflash, dflash-suite",
          machine={"script_owners": ("dflash", "dflash-suite")}),
    Fault("machine.script", "warn", "belongs to dflash-mlx",
          machine={"script_owners": ("dflash-mlx",)}),
    Fault("machine.kernels", "fail", "is not a folder", machine={"kernel_folder": Path(__file__)}),
    Fault("machine.disk", "warn", "500.0 MB free", machine={"disk_free_bytes": 500_000_000}),
    Fault("target.kind", "fail", "is a dflash2 drafter and not a target",
          lambda pair: write_config(pair, raw_drafter())),
    Fault("target.kind", "fail", "'mamba' is not supported",
          lambda pair: edit_json(pair / "config.json", {"model_type": "mamba"})),
    Fault("target.kind", "fail", "is not JSON",
          lambda pair: (pair / "config.json").write_text("{")),
    Fault("target.config", "fail", "'text_config.vocab_size' or 'vocab_size' is missing",
          lambda pair: edit_text_config(pair, lambda text: text.pop("vocab_size"))),
    Fault("target.rope", "warn", "outside rope_parameters", flat_rope),
    Fault("target.geometry", "fail", "mlx-lm cannot build a qwen3_5",
          lambda pair: edit_text_config(pair, lambda text: text.update(linear_num_value_heads=3))),
    Fault("target.tokenizer", "fail", "has no tokenizer",
          lambda pair: (pair / "tokenizer.json").unlink()),
    Fault("target.tokenizer", "fail", "could not be loaded",
          lambda pair: (pair / "tokenizer.json").write_text('{"a": 1}')),
    Fault("target.files", "fail", "has no weights", lambda pair: (pair / WEIGHTS).unlink()),
    Fault("target.files", "fail", "model-00002-of-00002.safetensors", missing_shard),
    Fault("target.headers", "fail", "the file is truncated", shorten(WEIGHTS)),
    Fault("target.index", "warn", "1 tensors are not where the index says", misplace),
    Fault("target.quantization", "warn", "no tensor is packed",
          lambda pair: edit_json(
              pair / "config.json", {"quantization": {"group_size": 64, "bits": 4}})),
    Fault("target.quantization", "fail", "'quantization' cannot be applied",
          lambda pair: edit_json(pair / "config.json", {"quantization": {"bits": 4}})),
    Fault("target.tensors", "fail", "norm.weight",
          without_tensor(WEIGHTS, "language_model.model.norm.weight")),
    Fault("target.forward", "fail", "mlx-lm's own forward of llama fails",
          lambda pair: edit_json(
              pair / "config.json", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
          target="llama"),
    Fault("target.tied", "warn", "the stored lm_head is not used",
          lambda pair: edit_json(pair / "config.json", {"tie_word_embeddings": True}),
          target="dense"),
    Fault("target.eos", "warn", "no eos id anywhere", without_eos, target="llama"),
    Fault("target.eos", "warn", "[512] are outside",
          lambda pair: edit_json(pair / "config.json", {"eos_token_id": [0, 512]})),
    Fault("target.template", "warn", "<|im_ned|>, which is not a token",
          lambda pair: edit_json(
              pair / "tokenizer_config.json", {"chat_template": "{{ messages }}<|im_ned|>"})),
    Fault("target.template", "warn", "is not a jinja template",
          lambda pair: edit_json(pair / "tokenizer_config.json", {"chat_template": "{% if %}"})),
    Fault("target.template", "warn", "no chat template",
          lambda pair: edit_json(pair / "tokenizer_config.json", {}, drop="chat_template")),
    Fault("drafter.kind", "fail", "is not a DFlash drafter",
          lambda pair: edit_json(pair / "drafter" / "config.json",
                                 {"architectures": ["Qwen3ForCausalLM"]}, drop="dflash_config")),
    Fault("drafter.config", "fail", "'dflash_config.target_layer_ids'",
          lambda pair: edit_json(
              pair / "drafter" / "config.json",
              {"dflash_config": {"block_size": 6, "mask_token_id": 511, "selector_rank": 8}})),
    Fault("drafter.heads", "fail", "4 attention heads are not a multiple of 3",
          drafter_says(num_key_value_heads=3)),
    Fault("drafter.mask", "fail", "mask_token_id 512 is outside", drafter_says(mask_token_id=512)),
    Fault("drafter.taps", "fail", "[2, 0] must be strictly increasing",
          drafter_says(target_layer_ids=[2, 0])),
    Fault("drafter.selector", "fail", "not a multiple of conv_group_size 48",
          drafter_says(conv_group_size=48)),
    Fault("drafter.rope", "fail", "no rope can be built",
          drafter_says(rope_parameters={"rope_theta": 1, "rope_type": "yarn", "factor": 2})),
    Fault("drafter.files", "fail", "has no weights",
          lambda pair: (pair / DRAFTER_WEIGHTS).unlink()),
    Fault("drafter.headers", "fail", "the file is truncated", shorten(DRAFTER_WEIGHTS)),
    Fault("drafter.tensors", "fail", "1 missing: hidden_norm.weight",
          without_tensor(DRAFTER_WEIGHTS, "hidden_norm.weight")),
    Fault("drafter.packing", "warn", "no tensor is packed",
          lambda pair: edit_json(pair / "drafter" / "config.json",
                                 {"quantization": {"bits": 4, "group_size": 64}})),
    Fault("drafter.slab", "warn", "dflash-int4-g64.slab, 0.0 MB: damaged",
          lambda pair: (pair / "drafter" / "dflash-int4-g64.slab").write_bytes(MARK + b"slab" * 9)),
    Fault("pair.vocab", "fail", "vocab 500 != target 512",
          drafter_like(vocab_size=500, mask_token_id=300)),
    Fault("pair.layers", "fail", "expects 9 target layers", drafter_like(num_target_layers=9)),
    Fault("pair.hidden_size", "fail", "hidden size 96 != target 64", drafter_like(hidden_size=96)),
    Fault("pair.taps", "fail", "ids count from 0", drafter_like(target_layer_ids=[1, 4])),
    Fault("pair.mask", "warn", "the ordinary token", drafter_like(mask_token_id=65)),
    Fault("pair.mask", "warn", "mask id 0 is an eos id", drafter_like(mask_token_id=0)),
    Fault("pair.tokenizer", "warn", "2 of 259 ids mean other strings", swapped_ids),
    Fault("target.memory", "warn", "MB of 0.0 MB", machine={"memory_bytes": 1000}),
    Fault("pair.positions", "warn", "drafter 99, target", drafter_like(max_position_embeddings=99)),
    Fault("pair.memory", "warn", "device 1.5 MB", machine={"memory_bytes": 1_500_000}),
    Fault("mtp.head", "fail", "the file is truncated", shorten("mtp.safetensors")),
    Fault("mtp.tensors", "fail", "1 missing: norm.weight",
          without_tensor("mtp.safetensors", "mtp.norm.weight")),
    Fault("mtp.norms", "warn", "k_norm.weight", mixed_head),
    Fault("pair.drafter", "warn", "no drafter given",
          lambda pair: (pair / "drafter").rename(pair / "elsewhere")),
]  # fmt: skip


def test_the_sound_pair_has_no_findings(tmp_path: Path) -> None:
    diagnosis = look(save_pair(tmp_path / "pair"))
    assert not troubles(diagnosis) and not diagnosis.not_reached
    assert {check.name for check in diagnosis.checks} == set(NAMES) - {NO_DRAFTER.name}
    assert all(check.found and check.expected for check in diagnosis.checks)


def test_every_check_has_a_fault() -> None:
    assert {fault.name for fault in FAULTS} == set(NAMES) and len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}-{fault.found[:20]}")
def test_one_check_alone_reports_it(fault: Fault, tmp_path: Path) -> None:
    pair = save_pair(tmp_path / "pair", fault.target)
    fault.plant(pair)
    changes = dict(fault.machine or {})
    if "versions" in changes:
        changes["versions"] = {**SOUND.versions, **changes["versions"]}
    diagnosis = look(pair, machine=replace(SOUND, **changes))
    found = troubles(diagnosis)
    assert set(found) == {fault.name}
    finding = found[fault.name]
    assert finding.status == fault.status
    assert fault.found in finding.found
    assert finding.expected and finding.fix
    assert diagnosis.is_healthy() == (fault.status == "warn")
    of_machine = fault.name.startswith("machine.") and fault.status == "warn"
    assert diagnosis.is_healthy(strict=True) == of_machine, "strict is about what was given"
