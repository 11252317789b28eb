"""The README says what is true: every option, every file, the commands it names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import typer.main

from dflash_suite.cli.app import app
from tests.kit.places import ROOT
from tests.kit.readme_tree import readme_with_tree

pytestmark = pytest.mark.quick

README = (ROOT / "README.md").read_text()
OPTIONS = (ROOT / "cli" / "README.md").read_text()


def test_every_command_and_option_is_described() -> None:
    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    assert commands
    for name, command in commands.items():
        assert f"dflash {name}" in README and f"dflash {name}" in OPTIONS
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("--") and option != "--help":
                    assert option in OPTIONS, f"dflash {name} {option} is not in cli/README.md"


def test_the_file_tree_is_true() -> None:
    if subprocess.run(["git", "status"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    assert readme_with_tree() == README, "run: python -m tests.kit.readme_tree"


def test_both_commands_are_there_and_ci_runs_them() -> None:
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    for command in ("demo", "test"):
        assert f"\n{command}: " in makefile
        assert f"make {command}" in README and f"make {command}" in ci


def python_files() -> list[Path]:
    """Every Python file of the repository, virtual environments left out."""
    folders = ("cli", "core", "doctor", "drafters", "examples", "tests")
    return [file for folder in folders for file in (ROOT / folder).rglob("*.py")]


def test_no_path_of_a_developer_is_left() -> None:
    for file in [*python_files(), ROOT / "README.md"]:
        if file.name != Path(__file__).name:
            text = file.read_text()
            assert "/Users/" not in text and "/home/" not in text, file


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 200
    checked = 0
    for file in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md"), *(ROOT / ".github").glob("*.md")]:
        if ".venv" in file.parts:
            continue
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text()):
            if "://" not in target:
                assert (file.parent / target).exists(), f"{file}: {target}"
                checked += 1
    assert checked > 15
