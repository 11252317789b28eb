"""`dflash quantize` and `generate --drafter-bits`: exit codes, stdout and stderr apart, JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dflash_suite.cli.app import app
from dflash_suite.core.options import CheckOptions
from dflash_suite.drafters.slab.store import slab_directory
from tests.kit.slabs import save_half
from tests.long.slab_torture import copy_bundled

PROMPT = ["--raw", "def fibonacci(n):\n", "--max-tokens", "16"]


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DFLASH_EXACT", "off")  # whose check at load is test_cli_exact.py's
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def document(*args: str) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_built_once_then_found(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d")
    first = document("quantize", str(checkpoint))
    assert first["schema"] == "dflash.quantize/1" and first["check"] is None
    slab = first["slab"]
    path = Path(slab["path"])
    assert path == checkpoint / "dflash-int4-g64.slab"
    assert slab["built"] and slab["size_bytes"] == path.stat().st_size
    assert slab["source_bytes"] == (checkpoint / "model.safetensors").stat().st_size
    assert (slab["bits"], slab["group_size"]) == (4, 64)
    assert (slab["packed_tensors"], slab["copied_tensors"]) == (20, 16)
    assert slab["elapsed_sec"] > 0 and slab["peak_rss_bytes"] > 1e6
    before = path.stat().st_mtime_ns
    second = run("quantize", str(checkpoint))
    assert second.exit_code == 0 and second.stderr == ""
    assert str(path) in second.stdout and "found whole, nothing written" in second.stdout
    assert path.stat().st_mtime_ns == before
    assert document("quantize", str(checkpoint), "--force")["slab"]["built"]
    eight = document("quantize", str(checkpoint), "--bits", "8", "--group-size", "32")["slab"]
    assert Path(eight["path"]).name == "dflash-int8-g32.slab" and eight["built"]
    assert not document("quantize", str(checkpoint), "--verify")["slab"]["built"]


def test_a_damaged_slab_is_named_on_stderr(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d")
    path = Path(document("quantize", str(checkpoint))["slab"]["path"])
    path.write_bytes(path.read_bytes()[:-1])
    result = run("quantize", str(checkpoint))
    assert result.exit_code == 0 and "built in" in result.stdout
    assert str(path) in result.stderr.replace("\n", "") and "made again" in result.stderr
    path.write_bytes(path.read_bytes()[:-1])
    assert run("quantize", str(checkpoint), "--quiet").stderr == ""


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (["quantize"], 2, "give DRAFTER"),
        (["quantize", "bundled:dflash2", "--bits", "5"], 2, "bits must be 4 or 8, got 5"),
        (["quantize", "bundled:dflash2", "--group-size", "7"], 2, "32, 64 or 128, got 7"),
        (["quantize", "/no/such/directory"], 1, "/no/such/directory"),
        (["quantize", "bundled:target"], 1, "is a target (qwen3_5) and not a drafter"),
        (["generate", *PROMPT, "-s", "none", "--drafter-bits", "5"], 2, "got 5"),
        (["generate", *PROMPT, "--drafter-bits", "3"], 2, "must be 4, 8 or 16, got 3"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    args: list[str], exit_code: int, message: str
) -> None:
    result = run(*args)
    assert result.exit_code == exit_code and result.stdout == ""
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert result.stderr.count("\n") == 1


def test_out_listing_and_pruning(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = document("quantize", "bundled:dflash", "--out", str(out))["slab"]
    assert made["path"] == str(out / "model.safetensors") and (out / "config.json").exists()
    assert document("quantize", "--list")["slabs"] == []
    assert run("quantize", "--list").stdout == "no slabs\n"
    checkpoint = save_half(tmp_path / "d")
    document("quantize", "bundled:dflash")
    cached = next(slab_directory().iterdir())
    path = Path(document("quantize", str(checkpoint))["slab"]["path"])
    slabs = document("quantize", str(checkpoint), "--list")["slabs"]
    assert {entry["path"]: entry["state"] for entry in slabs} == {
        str(cached): "current",
        str(path): "current",
    }
    damaged, foreign = (slab_directory() / name for name in ("damaged.slab", "foreign.slab"))
    damaged.write_bytes(cached.read_bytes()[:5000])
    foreign.write_bytes(b"somebody's")
    pruned = run("quantize", "--prune")
    assert pruned.exit_code == 0 and "removed 1, freed 0.0 MB; 2 files kept" in pruned.stdout
    assert str(foreign) in pruned.stdout and "not made here" in pruned.stdout
    assert sorted(slab_directory().iterdir()) == sorted([cached, foreign])
    assert str(cached) in run("quantize", "--list").stdout


def test_a_quantized_drafter_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    document("quantize", "bundled:dflash2", "--out", str(out))
    result = run("quantize", str(out))
    assert result.exit_code == 0 and result.stdout == ""
    assert "is quantized already and is used as it is" in result.stderr
    assert document("quantize", str(out), "--quiet")["slab"] is None
    assert not list(out.glob("*.slab"))
    asked = run("generate", *PROMPT, "--drafter", str(out), "-s", "dflash", "--drafter-bits", "8")
    assert "is quantized already and is used as it is" in asked.stderr
    assert "4-bit drafter" in asked.stderr
    default = run("generate", *PROMPT, "--drafter", str(out), "-s", "dflash")
    assert default.stdout == asked.stdout != "" and "already" not in default.stderr
    assert not list(out.glob("*.slab")) and not slab_directory().exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = copy_bundled(tmp_path_factory.mktemp("trained") / "dflash2")
    yield directory
    shutil.rmtree(directory)


def test_check_without_a_target_measures_weights_alone(trained: Path) -> None:
    result = run("quantize", str(trained), "--check", "--bits", "8")
    assert result.exit_code == 0
    assert "relative RMS error: mean 0." in result.stdout and "over 20 tensors" in result.stdout
    assert "it needs --model TARGET" in result.stdout


def test_check_measures_drafts_and_tokens_a_round(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckOptions, "max_tokens", 32)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "def f("}\n\n{"user": "A class."}\n')
    found = document(
        "quantize", str(trained), "--check", str(prompts), "--model", "bundled:target"
    )["check"]
    errors = {entry["name"]: entry["relative_rms"] for entry in found["tensors"]}
    assert len(errors) == 20 and all(0.02 < error < 0.3 for error in errors.values())
    agreement = found["agreement"]
    assert (agreement["prompts"], agreement["ids_equal"]) == (2, 2)
    assert 0.5 < agreement["agreement"] < 1  # 4 bits change some drafts, not most
    assert agreement["drafts"] > 40 and len(agreement["agreement_by_position"]) == 6
    assert agreement["rounds_before"] > 5 and agreement["rounds_after"] > 5
    assert 1 < agreement["tokens_per_round_after"] < 8
    assert 1 < agreement["tokens_per_round_before"] < 8


def test_check_takes_the_next_word_only_where_it_is_a_file(trained: Path, tmp_path: Path) -> None:
    before = document("quantize", "--check", str(trained), "--bits", "8")
    assert before["check"]["agreement"] is None and before["slab"]["bits"] == 8
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def f(\n")
    result = run("quantize", "--check", str(prompts), str(trained))
    assert result.exit_code == 2 and "needs the target: give --model" in result.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", "{", "prompt 1 is not JSON"),
        ("p.jsonl", '{"text": "a"}\n{"text": ""}', "prompt 2 has neither"),
        ("p.jsonl", '{"prompt_ids": [1, "2"]}', "prompt 1 has neither"),
        ("p.jsonl", "[1]", "prompt 1 holds a list"),
        ("p.txt", "\n \n", "has no prompts"),
    ],
)
def test_a_bad_prompt_file_is_named(
    trained: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    result = run("quantize", str(trained), f"--check={file}", "--model", "bundled:target")
    assert result.exit_code == 1 and message in result.stderr and str(file) in result.stderr


def test_generate_at_every_width_gives_the_same_ids(tmp_path: Path) -> None:
    found = {}
    for bits in ("4", "8", "16"):
        made = document("generate", *PROMPT, "-s", "dflash", "--drafter-bits", bits)
        assert made["speculation"]["drafter_bits"] == int(bits)
        assert made["stats"]["accepted"] > 0
        found[bits] = made["token_ids"]
    assert found["4"] == found["8"] == found["16"] and len(found["4"]) == 16
    names = sorted(path.name for path in slab_directory().iterdir())
    assert [name.partition("-int")[2] for name in names] == ["4-g64.slab", "8-g64.slab"]
    again = run("generate", *PROMPT)
    assert again.exit_code == 0 and "4-bit drafter" in again.stderr
    next(slab_directory().glob("*int4*")).write_bytes(b"broken")
    repaired = run("generate", *PROMPT)
    assert repaired.exit_code == 0 and repaired.stdout == again.stdout
    assert "made again" in repaired.stderr
    assert "made again" not in run("generate", *PROMPT).stderr


def test_plain_decoding_makes_no_slab() -> None:
    made = document("generate", *PROMPT, "-s", "none")
    assert made["speculation"]["drafter_bits"] is None
    assert not slab_directory().exists()
