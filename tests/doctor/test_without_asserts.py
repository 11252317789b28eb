"""The same verdicts under `python -O`, which leaves out asserts; weights without a tensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from tests.kit.doctor_pairs import look, save_pair, troubles
from tests.kit.places import SOURCE_ROOT


def run_optimized(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, under -O."""
    return subprocess.run(
        [sys.executable, "-O", "-m", "dflash_suite.cli", *args],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT), "NO_COLOR": "1"},
    )


def rename_tensors(pair: Path) -> None:
    """Weights of another release: every name is another."""
    file = pair / "model.safetensors"
    arrays: Any = mx.load(str(file))
    mx.eval(arrays)
    named = {name.replace("layers", "blocks"): array for name, array in arrays.items()}
    mx.save_safetensors(str(file), named, metadata={"format": "mlx"})


def empty_the_header(pair: Path) -> None:
    """A header that is right and names no tensor, as an interrupted converter leaves it."""
    text = b'{"__metadata__":{"format":"mlx"}}'
    (pair / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


def remove_config(pair: Path) -> None:
    """Nothing that says what the weights are."""
    (pair / "config.json").unlink()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (rename_tensors, "target.tensors"),
        (empty_the_header, "target.headers"),
        (remove_config, "target.kind"),
    ],
)
def test_the_doctor_fails_the_same_checks(plant: Any, check: str, tmp_path: Path) -> None:
    pair = save_pair(tmp_path / "pair")
    plant(pair)
    done = run_optimized("doctor", str(pair), "--json")
    document = json.loads(done.stdout)
    failed = {one["name"] for one in document["checks"] if one["status"] == "fail"}
    here = look(pair)
    assert failed == {name for name, one in troubles(here).items() if one.status == "fail"}
    assert document["not_reached"] == list(here.not_reached)
    assert check in failed and done.returncode == 1


def test_weights_without_a_tensor_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    pair = save_pair(tmp_path / "pair")
    empty_the_header(pair)
    found = troubles(look(pair))["target.headers"]
    assert found.status == "fail" and "model.safetensors" in found.found
    assert "no tensor in it" in found.found
    done = CliRunner().invoke(app, ["generate", "x", "--model", str(pair), "--speculation", "none"])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert "no tensor in it" in " ".join(done.stderr.split())


def test_one_bad_line_does_not_end_a_batch() -> None:
    lines = [
        {"prompt": "x", "logit_bias": [1]},
        {"prompt": "x", "top_k": True},
        {"prompt": "def f(n):", "max_tokens": 3},
    ]
    done = run_optimized(
        "generate", "--model", str(BUNDLED / "target"), "--speculation", "none", "--no-exact",
        "--requests", "-",
        text="".join(json.dumps(line) + "\n" for line in lines),
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result.get("error", {}).get("type") for result in results] == [
        "OptionError",
        "OptionError",
        None,
    ], done.stderr
    assert "expected an object of token ids" in results[0]["error"]["message"]
    assert len(results[2]["token_ids"]) == 3 and done.returncode == 1
