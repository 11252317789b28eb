"""LoRA adapters: ids are mlx-lm's own with the same adapter, in every mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.generate import generate_step
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load as untyped_load
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.core.errors import CheckpointError, DflashError, OptionError, UnsupportedModel
from dflash_suite.core.options import LoadOptions
from dflash_suite.drafters.engine import Engine, from_pair
from dflash_suite.drafters.pair import load_pair
from dflash_suite.drafters.request import Request
from tests.kit.tiny import Kind, Precision, prompt, save_checkpoint
from tests.kit.tiny_drafter import save_drafter

load: Any = untyped_load
CONFIG: dict[str, Any] = {
    "num_layers": 4,
    "lora_parameters": {"rank": 4, "scale": 10.0, "dropout": 0.0},
}


def save_adapter(directory: Path, target: Path, fine_tune_type: str = "lora") -> Path:
    """An adapter that mlx-lm itself made, its weights large enough to change ids."""
    directory.mkdir()
    config = {**CONFIG, "fine_tune_type": fine_tune_type}
    model = load(str(target))[0]
    dora = fine_tune_type == "dora"
    linear_to_lora_layers(model, 4, config["lora_parameters"], use_dora=dora)
    mx.random.seed(3)

    def drawn(path: str, array: mx.array) -> mx.array:
        is_new = path.rsplit(".", 1)[-1] in ("lora_a", "lora_b")
        return mx.random.normal(array.shape) * 0.3 if is_new else array

    model.update(tree_map_with_path(drawn, model.parameters()))
    leaves: Any = tree_flatten(model.parameters())
    kept = {n: a for n, a in leaves if n.rsplit(".", 1)[-1] in ("lora_a", "lora_b", "m")}
    mx.save_safetensors(str(directory / "adapters.safetensors"), kept)
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def mlx_lm_ids(target: Path, adapter: Path | None, ids: list[int], count: int) -> list[int]:
    model = load(str(target), adapter_path=str(adapter) if adapter else None)[0]
    step: Any = generate_step
    return [int(token) for token, _ in step(mx.array(ids), model, max_tokens=count)]


def adapted(target: Path, adapter: Path, **options: Any) -> Engine:
    loading = LoadOptions(model=str(target), adapter_path=str(adapter), exact=False, **options)
    return from_pair(load_pair(loading))


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("precision", ["float32", "4bit"])
def test_ids_are_mlx_lms_with_the_adapter(kind: Kind, precision: Precision, tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target", kind, precision, eos_ids=())
    adapter, ids = save_adapter(tmp_path / "adapter", target), prompt(9)
    drafter = save_drafter(tmp_path / "drafter")
    expected = mlx_lm_ids(target, adapter, ids, 24)
    assert expected != mlx_lm_ids(target, None, ids, 24), "the adapter changes nothing"
    engine = adapted(target, adapter, drafter=str(drafter), drafter_bits=16)
    for mode in ("dflash", "none"):
        request: Any = Request(ids, max_tokens=24, speculation=mode, gate=False)
        done = engine.complete(request)
        assert done.token_ids == expected
        assert done.to_dict()["adapter_path"] == str(adapter)


def test_dora_too(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target", "dense", eos_ids=())
    adapter, ids = save_adapter(tmp_path / "adapter", target, "dora"), prompt(9)
    done = adapted(target, adapter).complete(Request(ids, max_tokens=12))
    assert done.token_ids == mlx_lm_ids(target, adapter, ids, 12)


def test_bad_adapters_are_named(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target", "dense")
    other = save_checkpoint(tmp_path / "other", "dense", intermediate_size=96)
    peft, empty = tmp_path / "peft", tmp_path / "empty"
    for directory, config in ((peft, {"peft_type": "LORA"}), (empty, CONFIG)):
        directory.mkdir()
        (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    cases: list[tuple[Path, type[DflashError], str]] = [
        (save_adapter(tmp_path / "foreign", other), CheckpointError, "trained for it"),
        (peft, UnsupportedModel, "PEFT adapter"),
        (empty, DflashError, "no adapters.safetensors"),
        (tmp_path / "none", DflashError, "no directory"),
        (target, DflashError, "adapter_config.json"),
    ]
    for directory, error, words in cases:
        with pytest.raises(error, match=words):
            adapted(target, directory)


def test_fused_kernels_know_no_adapters(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target", "dense")
    adapter = save_adapter(tmp_path / "adapter", target)
    with pytest.raises(OptionError, match="no adapters"):
        adapted(target, adapter, kernels="fused")


@pytest.mark.parametrize("option", ["--model", "--drafter"])
@pytest.mark.parametrize("command", ["generate", "doctor"])
def test_an_adapter_given_as_a_model_is_recognised(
    option: str, command: str, tmp_path: Path
) -> None:
    target = save_checkpoint(tmp_path / "target", "dense")
    adapter = save_adapter(tmp_path / "adapter", target)
    call = [command, *([] if command == "doctor" and option == "--model" else [option])]
    call += [str(adapter)] if option == "--model" else [str(adapter)]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 1 and "Traceback" not in done.output
    said = " ".join((done.stdout + done.stderr).split())
    assert "is a LoRA adapter and no model" in said and "--adapter-path" in said


def test_the_footer_names_the_adapter(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target", "dense")
    adapter = save_adapter(tmp_path / "adapter", target)
    call = ["generate", "-m", str(target), "--adapter-path", str(adapter), "--raw", "x", "-n", "3"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.stderr
    assert f"adapter {adapter}" in " ".join(done.stderr.split())
