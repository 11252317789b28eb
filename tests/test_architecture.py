"""The structure that the code promises: imports one way, cheap start, small files, one printer."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.places import ROOT

pytestmark = pytest.mark.quick

LAYERS = ("core", "drafters", "doctor", "cli")
"""From the lowest to the highest: a layer imports from itself and from those before it."""
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
HEAVY = {"mlx", "mlx_lm", "transformers", "numpy", "huggingface_hub", "prompt_toolkit"}
Module = tuple[str, ...]
"""The parts of a module's name below dflash_suite: ("core", "decode", "loop")."""


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a text, which many tests walk."""
    return ast.parse(source)


def module_of(file: Path) -> Module:
    """A file's module; a package's `__init__` is the package."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(source: str, module: Module, is_package: bool = False) -> Iterator[Module]:
    """Every module of the suite that `source` names in an import, wherever the import stands.

    Of `from X import a` it is X.a, whether a is a module or something that X defines.
    """
    package = module if is_package else module[:-1]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == "dflash_suite":
                    yield tuple(rest)
        elif isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if node.level == 0 and named[:1] != ("dflash_suite",):
                continue
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = base + (named if node.level else named[1:])
            for alias in node.names:
                yield (*start, alias.name)


def wrong_layers(source: str, module: Module) -> set[str]:
    """Layers above that of `module`, which it must not import."""
    level = LAYERS.index(module[0])
    return {found[0] for found in imports_of(source, module) if found[:1] and found[0] in LAYERS
            and LAYERS.index(found[0]) > level}  # fmt: skip


def import_graph(sources: Mapping[Module, str], packages: set[Module]) -> dict[Module, set[Module]]:
    """Module -> the modules of the suite that it imports."""
    graph: dict[Module, set[Module]] = {}
    for module, source in sources.items():
        found = imports_of(source, module, module in packages)
        graph[module] = {name if name in sources else name[:-1] for name in found}
    return graph


def circles(graph: Mapping[Module, set[Module]]) -> list[tuple[Module, list[str]]]:
    """(folder, its children that import each other in a circle), for every folder.

    A child is a file or a package; a package imports what any file in it imports.
    """
    folders = {module[:depth] for module in graph for depth in range(len(module))}
    found = []
    for folder in sorted(folders):
        depth = len(folder)
        edges: dict[str, set[str]] = {}
        for module, targets in graph.items():
            for target in targets:
                inside = module[:depth] == target[:depth] == folder
                if inside and len(module) > depth and len(target) > depth:
                    edges.setdefault(module[depth], set()).add(target[depth])
        rest = _left_over(edges)
        if rest:
            found.append((folder, rest))
    return found


def _left_over(edges: Mapping[str, set[str]]) -> list[str]:
    """Children that remain when whoever imports no other is taken away, again and again."""
    left = {name: targets - {name} for name, targets in edges.items()}
    while True:
        done = {name for name, targets in left.items() if not targets & left.keys()}
        if not done:
            return sorted(left)
        left = {name: targets for name, targets in left.items() if name not in done}


def read_sources() -> tuple[dict[Module, str], set[Module]]:
    """Every module's text, and which modules are packages."""
    sources = {module_of(file): file.read_text() for file in FILES}
    return sources, {module_of(file) for file in FILES if file.name == "__init__.py"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_one_way(file: Path) -> None:
    assert wrong_layers(file.read_text(), module_of(file)) == set()


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("core.options", "from ..drafters.pair import load_pair"),
        ("core.options", "from .. import cli"),
        ("core.decode.loop", "from ...drafters.pair import load_pair"),
        ("core.cuda.ops.layers", "from ....drafters.dflash.load import load_drafter"),
        ("core.cuda.ops.layers", "def f():\n    from .... import doctor"),
        ("core.options", "def f():\n    from ..doctor import checks"),
        ("drafters.pair", "from ..cli.text.footer import print_note"),
        ("drafters.pair", "import dflash_suite.doctor.checks"),
        ("doctor.diagnose", "from dflash_suite.cli.app import app"),
    ],
)
def test_the_import_check_finds_planted_ones(module: str, planted: str) -> None:
    assert wrong_layers(planted, tuple(module.split(".")))


def test_packages_and_files_import_in_one_direction() -> None:
    """In every folder, at every depth: no circle between its files and packages, whether an
    import is lazy, for types alone, or neither."""
    sources, packages = read_sources()
    graph = import_graph(sources, packages)
    assert sum(map(len, graph.values())) > 500
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("module", "planted", "circle"),
    [
        ("core.cache.kinds", "from ..target.target import Target", "core"),
        ("core.cache.recurrent", "def f():\n    from . import tape", "core.cache"),
        ("core.cuda.runtime.steps", "from ..ops.bodies import bodies", "core.cuda"),
        ("core.target.target", "from ..loading.load import load_target", "core"),
        ("drafters.dflash.layers", "from ..slab.load import load_drafter_at", "drafters"),
    ],
)
def test_the_circle_check_finds_planted_ones(module: str, planted: str, circle: str) -> None:
    sources, packages = read_sources()
    sources[tuple(module.split("."))] += f"\n{planted}\n"
    found = circles(import_graph(sources, packages))
    assert tuple(circle.split(".")) in [folder for folder, _ in found]


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for module, source in read_sources()[0].items():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(".".join(module))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_every_package_says_what_it_is() -> None:
    """What lives there, what it may import, who uses it."""
    for file in FILES:
        if file.name == "__init__.py":
            text = ast.get_docstring(parsed(file.read_text())) or ""
            first, _, rest = text.partition("\n")
            assert first.endswith("."), file
            assert "May import: " in rest and "Used by: " in rest, file


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_command_prints_and_reads_no_stray_environment(file: Path) -> None:
    source, layer = file.read_text(), module_of(file)[0]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert layer == "cli" or node.func.id != "print", f"{file}: print outside cli"
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
            assert file == ROOT / "core" / "settings.py", f"{file}: environment read"
    if layer != "cli":
        assert "import rich" not in source and "from rich" not in source
    assert len(source.splitlines()) <= 300, f"{file} is over 300 lines"


def asserts_of(source: str) -> list[int]:
    """Lines with an `assert`."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


def test_no_assert_decides_anything() -> None:
    """`python -O` leaves asserts out: what one tells would pass there, or end in a traceback."""
    assert asserts_of("def f(x):\n    if x:\n        assert x.y, 'planted'") == [3]
    assert [file for file in FILES if asserts_of(file.read_text())] == []


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


UNEXPLAINED = re.compile(
    r"\bR\d{1,2}\b|\b(?:requirements|formats2?|peers|faults|serving)\.md\b|\b[Ii]ssue \d+"
)


def test_nothing_refers_to_what_is_not_in_the_repository() -> None:
    """A rule is the fact itself, a public source, or a number of core/README.md."""
    texts = [
        file for folder in (*LAYERS, "tests", "examples") for file in (ROOT / folder).rglob("*")
    ]
    checked = 0
    for file in [*texts, ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        if file.suffix in (".py", ".md", ".cu", ".h") and file.name != Path(__file__).name:
            found = UNEXPLAINED.search(file.read_text())
            assert found is None, f"{file}: {found[0] if found else ''}"
            checked += 1
    assert checked > 250


MOST_PARAMETERS = 6


def test_nothing_below_the_commands_takes_more_than_six_parameters() -> None:
    """A command's function has a parameter for each option; everything else takes dataclasses."""
    checked = 0
    for module, source in read_sources()[0].items():
        if module[:2] == ("cli", "commands"):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in given)
                assert count <= MOST_PARAMETERS, f"{'.'.join(module)}.{node.name} takes {count}"
                checked += 1
    assert checked > 1000
