"""Doctor yes and generate no, or the reverse, is a defect: both are asked about every variant."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import DflashError
from dflash_suite.core.loading.load import load_target
from dflash_suite.core.options import SPECULATION_VALUES, LoadOptions, parse_speculation
from dflash_suite.doctor.checks.check import run_checks
from dflash_suite.doctor.checks.drafter import DRAFTER_CHECKS
from dflash_suite.doctor.checks.pair import PAIR_CHECKS
from dflash_suite.doctor.checks.subjects import DrafterSubject, PairSubject, TargetSubject
from dflash_suite.doctor.checks.target import TARGET_CHECKS
from dflash_suite.doctor.diagnose import diagnose
from dflash_suite.doctor.results import Diagnosis
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.load import check_files
from dflash_suite.drafters.guards import check_pair
from dflash_suite.drafters.pair import load_pair
from tests.core.loading.test_target_loading import RECIPES
from tests.doctor.test_doctor_faults import FAULTS, Fault
from tests.drafters.test_broken_drafters import VARIANTS, save_variant
from tests.kit import sparse
from tests.kit.doctor_pairs import SOUND, edit_json, look, save_pair
from tests.kit.families import CONFIGS, save_family
from tests.kit.published import DRAFTERS, published_config, save_published
from tests.kit.tiny_drafter import raw_drafter, save_drafter

Edit = Callable[[dict[str, Any]], object]


def opens(model: Path, speculation: str) -> str | None:
    """The route that generate would take, None where it ends with an error."""
    try:
        return load_pair(
            LoadOptions(model=str(model), speculation=parse_speculation(speculation), exact=False)
        ).route.route
    except DflashError:
        return None


def promised(diagnosis: Diagnosis, speculation: str) -> str | None:
    """The route that the doctor shows."""
    routes = {route.requested: route.route for route in diagnosis.routes}
    return routes[speculation]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if not fault.machine],
    ids=lambda fault: f"{fault.name}-{fault.found[:20]}",
)
def test_every_planted_fault(fault: Fault, tmp_path: Path) -> None:
    """auto, dflash, mtp and none, each as generate would go."""
    pair = save_pair(tmp_path / "pair", fault.target)
    fault.plant(pair)
    diagnosis = look(pair)
    for speculation in SPECULATION_VALUES:
        assert promised(diagnosis, speculation) == opens(pair, speculation), speculation
    has_failed = diagnosis.count("fail") > 0
    assert has_failed == (fault.status == "fail")
    if has_failed:
        assert None in (promised(diagnosis, "dflash"), promised(diagnosis, "mtp"))


def target_opens(directory: Path) -> bool:
    """Whether the loader takes a target alone."""
    try:
        load_target(read_target_config(directory))
    except DflashError:
        return False
    return True


def target_passes(directory: Path) -> bool:
    """Whether the doctor finds no failure in a target alone."""
    return look(directory).is_healthy()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family(name: str, tmp_path: Path) -> None:
    directory = save_family(tmp_path / "target", name)
    assert target_opens(directory) and target_passes(directory)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_quantization(recipe: str, tmp_path: Path) -> None:
    name, quantization = RECIPES[recipe]
    changes: dict[str, Any] = (
        {"hidden_size": 128}
        if any(
            isinstance(value, dict) and value["group_size"] > 32 for value in quantization.values()
        )
        else {}
    )
    directory = save_family(tmp_path / "target", name, quantization=quantization, **changes)
    assert target_opens(directory) and target_passes(directory)


def drop_last(arrays: dict[str, mx.array]) -> None:
    """A tensor too few."""
    del arrays[sorted(arrays)[-1]]


def add_one(arrays: dict[str, mx.array]) -> None:
    """A tensor too many."""
    arrays["model.layers.0.extra.weight"] = mx.zeros((2, 2))


def reshape_one(arrays: dict[str, mx.array]) -> None:
    """A tensor of another shape."""
    name = next(name for name in sorted(arrays) if name.endswith("layernorm.weight"))
    arrays[name] = mx.zeros((arrays[name].size + 1,))


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "qwen3_next", "gpt_oss", "gemma4"])
@pytest.mark.parametrize("change", [drop_last, add_one, reshape_one])
def test_wrong_tensors_of_every_kind_of_family(
    name: str, change: Callable[[dict[str, mx.array]], None], tmp_path: Path
) -> None:
    directory = save_family(tmp_path / "target", name)
    file = directory / "model.safetensors"
    arrays = mx.load(str(file))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    change(arrays)
    file.unlink()
    mx.save_safetensors(str(file), arrays, metadata={"format": "mlx"})
    assert target_opens(directory) == target_passes(directory)
    assert not target_passes(directory)


CONFIG_EDITS: dict[str, tuple[str, Edit]] = {
    "heads that are not a multiple": ("qwen3", lambda raw: raw.update(num_key_value_heads=3)),
    "no layers stated": ("qwen3", lambda raw: raw.pop("num_hidden_layers")),
    "a layer too many": ("qwen3", lambda raw: raw.update(num_hidden_layers=5)),
    "a layer too few": ("qwen3", lambda raw: raw.update(num_hidden_layers=3)),
    "another width": ("llama", lambda raw: raw.update(hidden_size=96)),
    "another vocabulary": ("llama", lambda raw: raw.update(vocab_size=500)),
    "a string for a number": ("qwen3", lambda raw: raw.update(hidden_size="64")),
    "no rope base": ("qwen3", lambda raw: raw.pop("rope_theta")),
    "an unknown rope": (
        "llama", lambda raw: raw.update(rope_scaling={"rope_type": "spiral", "factor": 2.0})),
    "tied without being so": ("qwen3_5", lambda raw: raw.update(tie_word_embeddings=True)),
    "no experts": ("qwen3_moe", lambda raw: raw.update(num_experts=0)),
    "more experts than there are": ("qwen3_moe", lambda raw: raw.update(num_experts=8)),
    "another model_type": ("qwen3", lambda raw: raw.update(model_type="mistral")),
    "no model_type": ("qwen3", lambda raw: raw.pop("model_type")),
    "a number for model_type": ("qwen3", lambda raw: raw.update(model_type=3)),
    "code of its own": ("qwen3", lambda raw: raw.update(model_file="model.py")),
    "an unpacked quantization": (
        "qwen3", lambda raw: raw.update(quantization={"group_size": 64, "bits": 4})),
    "a quantization without bits": (
        "qwen3", lambda raw: raw.update(quantization={"group_size": 64})),
    "a quantization that is a word": ("qwen3", lambda raw: raw.update(quantization="4bit")),
    "an override of a plain module": (
        "qwen3",
        lambda raw: raw.update(
            quantization={"group_size": 32, "bits": 4, "lm_head": {"group_size": 32, "bits": 4}}),
    ),
    "AWQ": ("qwen3", lambda raw: raw.update(quantization_config={"quant_method": "awq"})),
    "an unknown method": (
        "qwen3", lambda raw: raw.update(quantization_config={"quant_method": "magic"})),
    "a text_config that is a list": ("qwen3", lambda raw: raw.update(text_config=[])),
    "a sliding window of none": ("gpt_oss", lambda raw: raw.update(sliding_window=None)),
}  # fmt: skip


@pytest.mark.parametrize("edit", CONFIG_EDITS)
def test_edited_configs(edit: str, tmp_path: Path) -> None:
    name, change = CONFIG_EDITS[edit]
    directory = save_family(tmp_path / "target", name)
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    change(raw)
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    assert target_opens(directory) == target_passes(directory)


FILE_EDITS: dict[str, Callable[[Path], object]] = {
    "no tokenizer": lambda target: (target / "tokenizer.json").unlink(),
    "a tokenizer that is not JSON": lambda target: (target / "tokenizer.json").write_text("{"),
    "settings that are not JSON": lambda target: (target / "tokenizer_config.json").write_text("["),
    "no settings": lambda target: (target / "tokenizer_config.json").unlink(),
    "generation settings that are not JSON": lambda target: (
        target / "generation_config.json").write_text("{"),
    "another name of the weights": lambda target: (target / "model.safetensors").rename(
        target / "weights.safetensors"),
    "an empty weights file": lambda target: (target / "model.safetensors").write_bytes(b""),
    "a web page for weights": lambda target: (target / "model.safetensors").write_bytes(
        b"<!DOCTYPE html>" * 99),
    "one byte too few": lambda target: os.truncate(
        target / "model.safetensors", (target / "model.safetensors").stat().st_size - 1),
    "bytes behind the end": lambda target: (target / "model.safetensors").write_bytes(
        (target / "model.safetensors").read_bytes() + b"x"),
    "an index that is a list": lambda target: (
        target / "model.safetensors.index.json").write_text("[]"),
    "an index of other files": lambda target: edit_json(
        target / "model.safetensors.index.json", {"weight_map": {"a": "b.safetensors"}}),
    "a template that is no template": lambda target: edit_json(
        target / "tokenizer_config.json", {"chat_template": "{% for"}),
    "a GGUF file beside it": lambda target: (target / "model.gguf").write_bytes(b"GGUF"),
}  # fmt: skip


@pytest.mark.parametrize("edit", FILE_EDITS)
def test_edited_files(edit: str, tmp_path: Path) -> None:
    directory = save_family(tmp_path / "target", "qwen3")
    FILE_EDITS[edit](directory)
    assert target_opens(directory) == target_passes(directory)


def drafter_opens(directory: Path) -> bool:
    """Whether the loader takes a drafter, as far as it goes before it reads data."""
    try:
        check_files(read_drafter_config(directory))
    except DflashError:
        return False
    return True


@pytest.mark.parametrize("name", VARIANTS)
def test_broken_variants_of_published_drafters(name: str, tmp_path: Path) -> None:
    """One failure each, in the drafter's own checks."""
    directory = save_variant(tmp_path, VARIANTS[name])
    diagnosis = diagnose(None, str(directory), SOUND)
    assert not drafter_opens(directory)
    assert [check.status for check in diagnosis.checks].count("fail") == 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_published_drafter_against_one_target(
    name: str, tmp_path: Path, qwen3_4b: TargetSubject
) -> None:
    """Guards, container and tensors; most were trained for another target."""
    drafter = save_published(tmp_path / "drafter", name)
    fits = drafter_opens(drafter)
    if fits:
        try:
            check_pair(qwen3_4b.config, read_drafter_config(drafter))
        except DflashError:
            fits = False
    subject = DrafterSubject(drafter, SOUND)
    findings, _ = run_checks(DRAFTER_CHECKS, subject)
    pair, _ = run_checks(PAIR_CHECKS, PairSubject(qwen3_4b, subject))
    assert all(check.status != "fail" for check in [*findings, *pair]) == fits
    assert fits == (name == "Qwen3-4B-DFlash-b16")


@pytest.fixture(scope="module")
def qwen3_4b(tmp_path_factory: pytest.TempPathFactory) -> TargetSubject:
    """A published target, as sparse files."""
    raw = published_config("target.Qwen3-4B")
    directory = tmp_path_factory.mktemp("target")
    sparse.save_target(directory, raw, sparse.qwen3_tensors(raw))
    target = TargetSubject(directory, SOUND)
    findings, _ = run_checks(TARGET_CHECKS, target)
    assert {finding.status for finding in findings} == {"pass"}
    return target


@pytest.mark.parametrize("name", ["nowhere", "empty", "other"])
def test_a_named_drafter_that_cannot_be_used_is_no_route_of_auto(tmp_path: Path, name: str) -> None:
    """Beside the target it is passed over; named it is an error, in generate and in doctor."""
    pair = save_pair(tmp_path / "pair")
    (tmp_path / "empty").mkdir()
    save_drafter(tmp_path / "other", raw_drafter(vocab_size=100, mask_token_id=5))
    given = str(tmp_path / name)
    with pytest.raises(DflashError):
        load_pair(LoadOptions(model=str(pair), drafter=given, exact=False))
    routes = {one.requested: one for one in diagnose(str(pair), given, SOUND).routes}
    assert routes["auto"].route is None and routes["auto"].reason
    assert routes["none"].route == "none"
