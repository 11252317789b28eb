"""The README's map of packages, one line a package, from the first line of its `__init__`.

`python -m tests.kit.readme_tree` rewrites the README's block; a test holds the two equal.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.kit.places import ROOT

README = ROOT / "README.md"
START = "<!-- packages: python -m tests.kit.readme_tree -->\n```\n"
END = "```\n<!-- end of packages -->\n"
FOLDERS = ("core", "drafters", "doctor", "cli", "tests")
OTHER = {
    "drafters/bundled/": "the small trained pair and its reference outputs",
    "examples/": "scripts that use the suite from Python",
    "examples/gpu_bench/": "benchmarks on a GPU, their results and a profile",
    ".src/dflash_suite/": "the import package: links to the four folders of the suite",
}
TEST_PACKAGES = ("tests", "tests/kit", "tests/long")


def summary(file: Path) -> str:
    """First line of a package's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    assert docstring, f"{file} has no docstring"
    return docstring.splitlines()[0].rstrip(".")


def tree() -> str:
    """The block between the markers."""
    lines = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("__init__.py")):
            name = str(file.parent.relative_to(ROOT))
            if folder != "tests" or name in TEST_PACKAGES:
                lines.append(f"{name + '/':22} {summary(file)}")
    lines += [f"{name:22} {text}" for name, text in OTHER.items() if name not in "".join(lines)]
    return "\n".join(lines) + "\n"


def readme_with_tree() -> str:
    """The README's text with a fresh tree."""
    text = README.read_text()
    head, rest = text.split(START)
    return head + START + tree() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(readme_with_tree())
