"""`dflash doctor`: exit codes, stdout and stderr apart, 80 columns, JSON, lone directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dflash_suite.cli.app import app
from dflash_suite.core.options import SPECULATION_VALUES
from dflash_suite.doctor.results import SCHEMA
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from tests.kit.doctor_pairs import edit_json, save_pair
from tests.kit.places import ROOT
from tests.kit.tiny import save_checkpoint
from tests.kit.tiny_drafter import save_drafter

PLAIN = {"NO_COLOR": "1", "COLUMNS": "80", "TERM": "dumb"}


def doctor(*arguments: object) -> Result:
    """The command in this process, 80 columns wide and without colour."""
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env=PLAIN)


def statuses(text: str) -> set[str]:
    """Statuses that stand at the beginning of a line."""
    return {line[:4] for line in text.splitlines()} & {"PASS", "WARN", "FAIL"}


def test_the_bundled_pair_by_its_directory(tmp_path: Path) -> None:
    """As the README shows it: `dflash doctor DIR`."""
    run = doctor(BUNDLED / "target")
    assert run.exit_code == 0 and run.stderr == ""
    lines = run.stdout.splitlines()
    assert lines[-1].endswith("0 failures")
    assert "PASS vocab        4096 ids in both" in lines
    assert "FAIL" not in statuses(run.stdout)
    routes = lines[lines.index("routes of dflash generate") + 1 : -1]
    assert [line.split()[0] for line in routes][: len(SPECULATION_VALUES)] == list(
        SPECULATION_VALUES
    )
    assert routes[0].split()[:3] == ["auto", "->", "dflash2"]


def test_eighty_columns_without_colour_or_padding(tmp_path: Path) -> None:
    """Every line fits that holds no path longer than itself; nothing but text is written."""
    pair = save_pair(tmp_path / "pair")
    edit_json(pair / "drafter" / "config.json", {"num_target_layers": 9})
    run = doctor(pair)
    assert run.exit_code == 1
    assert "\x1b" not in run.stdout
    for line in run.stdout.splitlines():
        assert line == line.rstrip()
        assert len(line) <= 80 or str(tmp_path) in line
    assert {"PASS", "FAIL"} <= statuses(run.stdout)
    assert "do:       give the drafter that was trained for this target" in run.stdout


def test_strict_makes_warnings_failures(tmp_path: Path) -> None:
    target = save_checkpoint(tmp_path / "target")
    assert doctor(target).exit_code == 0
    run = doctor(target, "--strict")
    assert run.exit_code == 1
    assert "WARN drafter      no drafter given" in run.stdout


def test_json_is_one_document_with_the_documented_keys(tmp_path: Path) -> None:
    pair = save_pair(tmp_path / "pair")
    (pair / "drafter" / "model.safetensors").unlink()
    run = doctor(pair, "--json")
    assert run.exit_code == 1 and run.stderr == ""
    document = json.loads(run.stdout)
    assert list(document) == [
        "schema", "model", "drafter", "summary", "checks", "not_reached", "routes",
    ]  # fmt: skip
    assert document["schema"] == SCHEMA == "dflash.doctor/1"
    assert document["model"] == str(pair) and document["drafter"] == str(pair / "drafter")
    counted = [check["status"] for check in document["checks"]]
    assert document["summary"] == {name: counted.count(name) for name in ("pass", "warn", "fail")}
    for check in document["checks"]:
        assert list(check) == ["name", "status", "found", "expected", "fix"]
        assert bool(check["fix"]) == (check["status"] != "pass")
    assert {"drafter.headers", "drafter.tensors"} <= set(document["not_reached"])
    routes = {route["requested"]: route for route in document["routes"]}
    assert routes["auto"]["route"] == "mtp" and "drafter.files" in routes["auto"]["reason"]
    assert routes["dflash"]["route"] is None


def test_alone_it_checks_the_machine() -> None:
    run = doctor()
    assert run.exit_code == 0
    assert run.stdout.splitlines()[0] == "machine"
    assert "target" not in run.stdout.split() and "routes" not in run.stdout


def test_a_drafter_alone_gets_its_own_checks(tmp_path: Path) -> None:
    """As the argument or as --drafter; it has no route without a target."""
    drafter = save_drafter(tmp_path / "drafter")
    for arguments in ([drafter], ["--drafter", drafter]):
        run = doctor(*arguments, "--json")
        document = json.loads(run.stdout)
        groups = {check["name"].split(".")[0] for check in document["checks"]}
        assert run.exit_code == 0 and groups == {"machine", "drafter"}
        assert document["model"] is None and document["drafter"] == str(drafter)
        assert document["routes"] == []


@pytest.mark.parametrize("swapped", [False, True])
def test_swapped_arguments_are_named(tmp_path: Path, swapped: bool) -> None:
    target, drafter = save_checkpoint(tmp_path / "target"), save_drafter(tmp_path / "drafter")
    first, second = (drafter, target) if swapped else (target, drafter)
    run = doctor(first, "--drafter", second)
    assert run.exit_code == (1 if swapped else 0)
    assert ("give its directory to" in run.stdout) == swapped


def test_usage_errors_are_exit_2() -> None:
    run = doctor("--no-such-option")
    assert run.exit_code == 2 and run.stdout == ""


def test_a_name_that_leads_nowhere_is_a_finding(tmp_path: Path) -> None:
    run = doctor(tmp_path / "nowhere")
    assert run.exit_code == 1 and run.stderr == ""
    assert "FAIL kind" in run.stdout and "neither a directory here nor a hub id" in run.stdout


def test_a_closed_pipe_and_a_narrow_terminal(tmp_path: Path) -> None:
    """As a process: no traceback when the reader goes away, and 40 columns still work."""
    pair = save_pair(tmp_path / "pair")
    environment = {**os.environ, **PLAIN, "COLUMNS": "40", "PYTHONPATH": str(ROOT / ".src")}
    run = subprocess.run(
        f"{sys.executable} -m dflash_suite.cli doctor {pair} | head -n 3",
        shell=True, capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert "Traceback" not in run.stderr
    assert all(len(line) <= 40 for line in run.stdout.splitlines())


def test_strict_is_about_what_was_given_and_not_about_the_machine(tmp_path: Path) -> None:
    """A Linux CPU has a warning about its BLAS, whatever the pair is."""
    pair = save_pair(tmp_path / "pair")
    document = json.loads(doctor(pair, "--strict", "--json").stdout)
    warned = {one["name"].split(".")[0] for one in document["checks"] if one["status"] == "warn"}
    assert warned <= {"machine"}
    assert doctor(pair, "--strict").exit_code == 0


def test_options_of_the_probe_without_it_are_named() -> None:
    run = doctor("--dtype", "float32", "--drafter-bits", "8")
    for option in ("--dtype", "--drafter-bits"):
        assert f"{option} is ignored: it concerns --probe" in run.stderr
    assert "--kernels" not in run.stderr
