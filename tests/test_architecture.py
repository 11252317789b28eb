"""The structure that the code promises: imports one way, cheap start, small files, one printer."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("core", "drafters", "doctor", "cli")
FILES = [file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))]
ALLOWED_TOP_LEVEL = {
    *LAYERS,
    "tests",
    "examples",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "Makefile",
}
HEAVY = {"mlx", "mlx_lm", "transformers", "numpy", "huggingface_hub"}


def imported_layers(source: str, layer: str) -> set[str]:
    """Layers of the suite that a module of `layer` imports, at any depth of nesting."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            names = [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
            found.update(name for name in names if name in LAYERS)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            parts = (node.module or "").split(".")
            if parts[0] == "dflash_suite" and len(parts) > 1:
                found.add(parts[1])
        elif isinstance(node, ast.Import):
            found.update(
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("dflash_suite.")
            )
    return found - {layer}


def wrong_imports(source: str, layer: str) -> set[str]:
    """Layers above `layer`, which it must not import."""
    return {name for name in imported_layers(source, layer) if _level(name) > _level(layer)}


def _level(layer: str) -> int:
    return LAYERS.index(layer)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_one_way(file: Path) -> None:
    layer = file.relative_to(ROOT).parts[0]
    assert wrong_imports(file.read_text(), layer) == set()


@pytest.mark.parametrize(
    ("layer", "planted"),
    [
        ("core", "from ..drafters.load import load_drafter"),
        ("core", "from .. import cli"),
        ("core", "def f():\n    from ..doctor import checks"),
        ("drafters", "from ..cli.render import print_note"),
        ("drafters", "import dflash_suite.doctor.checks"),
        ("doctor", "from dflash_suite.cli.app import app"),
    ],
)
def test_the_import_check_finds_planted_ones(layer: str, planted: str) -> None:
    assert wrong_imports(planted, layer)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_command_prints_and_reads_no_stray_environment(file: Path) -> None:
    source, layer = file.read_text(), file.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert layer == "cli" or node.func.id != "print", f"{file}: print outside cli"
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
            assert file.name == "settings.py", f"{file}: environment read outside settings"
    if layer != "cli":
        assert "import rich" not in source and "from rich" not in source
    assert len(source.splitlines()) <= 300, f"{file} is over 300 lines"


def test_top_level_is_what_was_agreed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    tops = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {top for top in tops if not top.startswith(".")} <= ALLOWED_TOP_LEVEL


def test_help_is_cheap() -> None:
    """`dflash --help` imports nothing heavy; the time bound is loose, the import list is not."""
    code = (
        "import sys; sys.argv = ['dflash', '--help']\n"
        "from dflash_suite.cli.app import app\n"
        "try: app(prog_name='dflash')\n"
        "except SystemExit: pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    started = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".src"), "NO_COLOR": "1"},
    )
    assert time.perf_counter() - started < 5
    loaded = set(ast.literal_eval(run.stderr.splitlines()[-1]))
    assert not loaded & HEAVY
    assert "generate" in run.stdout
