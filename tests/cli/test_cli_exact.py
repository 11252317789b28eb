"""`--exact` and the line about identity: `generate`, `--requests`, `bench`, on planted devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dflash_suite.cli.app import app
from dflash_suite.core.exact import plan as exact
from dflash_suite.core.exact import promise
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget
from dflash_suite.core.exact.promise import Promise
from dflash_suite.core.loading.load import LoadedTarget, load_target
from dflash_suite.core.target.target import Target
from dflash_suite.drafters import pair as pairs
from tests.kit.planted import Fault, plant
from tests.kit.tiny import save_checkpoint
from tests.kit.tiny_drafter import save_drafter

CODE = "def fibonacci(n):\n"
TINY = ["--raw", "abc", "-n", "6", "--no-gate", "--drafter-bits", "16"]
CHECKED = "identical here (blocks of up to 7 rows, checked at load)"


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour and a fixed width, whatever the surroundings."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def one_short_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a plan takes seconds otherwise; none is stored, so that each is measured."""
    monkeypatch.setattr(exact, "CPU_CONTEXTS", (8,))
    monkeypatch.setenv("DFLASH_STORED_PROBE", "off")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for a tiny pair, trained at 6 rows, where what is measured is not the bundled one."""
    place = tmp_path_factory.mktemp("tiny")
    save_drafter(save_checkpoint(place) / "drafter")
    return ["--model", str(place)]


def run(*args: str, command: str = "generate", stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [command, *args], input=stdin)


@pytest.fixture
def planted_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Every target that is loaded from now on has this fault."""

    def install(fault: Fault) -> None:
        def load(*args: Any) -> LoadedTarget:
            loaded = load_target(*args)
            return LoadedTarget(plant(loaded.target, fault), loaded.tokenizer)

        monkeypatch.setattr(pairs, "load_target", load)

    return install


@pytest.mark.long
def test_generate_says_what_was_checked() -> None:
    short = ["--raw", CODE, "-n", "6", "--no-gate"]
    line = "identity with plain decoding: "
    assert f"{line}{CHECKED}" in run(*short).stderr
    assert f"{line}not verified on this device\n" in run(*short, "--no-exact").stderr
    exact = run(*short, "--exact")
    assert f"{line}identical here (blocks of up to 16 rows, checked at load)" in exact.stderr
    assert line not in run(*short, "-s", "none").stderr
    document = json.loads(run(*short, "--exact", "--json").stdout)
    assert document["identity"]["exact"] is True
    assert document["identity"]["plan"]["width"] == 16
    assert document["identity"]["statement"].startswith("identical here")


def test_a_device_whose_rows_differ_is_not_called_identical(
    planted_device: Callable[[Fault], None], tiny: list[str]
) -> None:
    planted_device("width and keys")
    short = [*TINY, *tiny]
    told = run(*short).stderr
    assert "not verified on this device (" in told and "rows differ at width 6" in told
    exact = json.loads(run(*short, "--exact", "--json").stdout)
    plain = json.loads(run(*short, "--exact", "--json", "-s", "none").stdout)
    assert exact["identity"]["plan"]["pads"] is True
    assert exact["identity"]["statement"] == (
        "identical here (every pass at 8 rows, checked at load)"
    )
    assert exact["token_ids"] == plain["token_ids"] and exact["stats"]["rounds"] > 0


@pytest.mark.parametrize("requests", [False, True])
def test_where_nothing_is_exact_the_command_ends(
    planted_device: Callable[[Fault], None], requests: bool, tmp_path: Path, tiny: list[str]
) -> None:
    planted_device("neighbour")
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "x"}\n', encoding="utf-8")
    given = ["--requests", str(file)] if requests else ["--raw", CODE]
    result = run("--exact", *tiny, *given)
    assert result.exit_code == 1 and result.stdout == ""
    assert "error: " in result.stderr and "no way was found on this device" in result.stderr
    assert "Traceback" not in result.stderr and "every pass at 8 rows" in result.stderr


def test_a_block_above_the_exact_width_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(target: Target, *args: Any, **named: Any) -> tuple[Target, Promise]:
        plan = ExactPlan(4, pads=True)
        return ExactTarget(target, plan), Promise(plan, asked=True)

    monkeypatch.setattr(pairs, "keep_exact", narrow)
    short = ["--raw", CODE, "-n", "6", "--no-gate", "--exact", "-s", "dflash"]
    result = run(*short, "--block-size", "6")
    assert result.exit_code == 2 and result.stdout == ""
    assert "--block-size 6 is above the exact width" in result.stderr and "4 rows" in result.stderr
    cut = run(*short)
    assert cut.exit_code == 0 and "block 4 of 8 trained (the widest that is exact" in cut.stderr
    assert json.loads(run(*short, "--json").stdout)["speculation"]["block"]["effective"] == 4


def test_exact_is_a_setting(monkeypatch: pytest.MonkeyPatch, tiny: list[str]) -> None:
    monkeypatch.setenv("DFLASH_EXACT", "off")
    short = [*TINY, *tiny]
    assert "not verified on this device" in run(*short).stderr
    assert "identical here" in run(*short, "--exact").stderr


def test_a_measured_plan_is_stored_and_used_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    short = [*TINY, *tiny, "--stored-probe"]
    assert "identical here (blocks of up to 16" in run(*short, "--exact").stderr
    assert len(list((tmp_path / "dflash/probes").iterdir())) == 1
    measured: list[int] = []
    monkeypatch.setattr(promise, "find_plan", measured.append)
    monkeypatch.setattr(promise, "blocks_agree", measured.append)
    for option in ("--exact", ""):
        told = run(*short, *filter(None, [option])).stderr
        assert f"exact: verified on this device on {date.today()} (stored probe)" in told
    assert measured == []


def test_bench_says_what_it_compared_and_by_which_plan(tiny: list[str]) -> None:
    args = ["--ab", "none", "--max-prompts", "1", "--repeats", "1", "-n", "8", "-q", *tiny]
    args += ["--drafter-bits", "16"]
    document = json.loads(run(*args, "--exact", "--json", command="bench").stdout)
    assert document["settings"]["exact"]["width"] == 16
    statements = [arm["identity"]["statement"] for arm in document["arms"]]
    assert statements == ["identical here"] * 2
    table = run(*args, command="bench").stdout.replace("\n", " ")
    assert "A, B identical here." in table and "exact:" not in table
    table = run(*args, "--exact", command="bench").stdout
    assert "exact: blocks of up to 16 rows, " in table
