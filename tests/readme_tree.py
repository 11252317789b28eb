"""The README's file tree, one line a file, from each file's own first docstring line.

`python tests/readme_tree.py` rewrites the README's block; a test holds the two equal.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
START, END = "<!-- tree: python tests/readme_tree.py -->\n```\n", "```\n<!-- end of tree -->\n"
OTHER = {
    "Makefile": "the two commands, and `make identity`",
    "pyproject.toml": "package, dependencies, tool settings",
    "CHANGELOG.md": "what changed",
    ".ci/run": "both commands, as CI runs them",
    ".src/dflash_suite/": "the import package: links to the four folders below",
    "drafters/bundled/": "the small trained pair and its reference outputs",
    "drafters/prompt_sets.json": "prompts of `dflash bench`: chat, code, prose, edit",
    "tests/data/": "published configs and tensor lists, as facts for the tests",
}


def tracked() -> list[str]:
    """Files that git tracks or would track, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(line for line in set(listed.stdout.splitlines()) if (ROOT / line).exists())


def summary(file: Path) -> str:
    """First line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    assert docstring, f"{file} has no docstring"
    return docstring.splitlines()[0].rstrip(".")


def tree() -> str:
    """The block between the markers."""
    files = tracked()
    lines = [f"{name:32} {text}" for name, text in OTHER.items() if _exists(name, files)]
    for name in files:
        folder = name.split("/")[0]
        if name.endswith(".py") and folder in ("cli", "core", "drafters", "doctor", "tests"):
            if Path(name).name != "__init__.py" or "/" not in name.removeprefix(folder + "/"):
                lines.append(f"{name:32} {summary(ROOT / name)}")
        elif folder == "examples" and name.count("/") == 1:
            text = summary(ROOT / name) if name.endswith(".py") else "see its first lines"
            lines.append(f"{name:32} {text}")
    return "\n".join(lines) + "\n"


def _exists(name: str, files: list[str]) -> bool:
    return any(file == name or (name.endswith("/") and file.startswith(name)) for file in files)


def readme_with_tree() -> str:
    """The README's text with a fresh tree."""
    text = README.read_text()
    head, rest = text.split(START)
    return head + START + tree() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(readme_with_tree())
