"""A byte-level tokenizer with markers for reasoning and for calls of tools, and templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_tokenizer

from tests.kit.tiny import save_byte_tokenizer

THINK = ("<think>", "</think>")
JSON_CALLS = "{# <tool_call> tool_call.name #}"
"""By which mlx-lm knows a template whose calls are JSON."""
XML_CALLS = "{# <tool_call>\n<function= #}"
"""By which it knows the markup of Qwen's coders."""
FIRST_ADDED_ID = 300


def save_marked_tokenizer(
    directory: Path, template: str | None = None, added: Sequence[str] = THINK
) -> None:
    """Save the tokenizer of bytes with `added` tokens, none of them special, and a template."""
    save_byte_tokenizer(directory)
    file = directory / "tokenizer.json"
    raw = json.loads(file.read_text())
    for index, token in enumerate(added, start=FIRST_ADDED_ID):
        raw["added_tokens"].append(
            {"id": index, "content": token, "special": False, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False}
        )  # fmt: skip
    file.write_text(json.dumps(raw))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def marked_tokenizer(
    directory: Path, template: str | None = None, added: Sequence[str] = THINK
) -> Any:
    """mlx-lm's wrapper of it."""
    save_marked_tokenizer(directory, template, added)
    load: Any = load_tokenizer
    return load(directory)
