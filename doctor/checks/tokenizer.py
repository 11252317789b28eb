"""What a directory's tokenizer files say, read as JSON: no tokenizer is built.

Hashes come first; a whole tokenizer.json (20 MB for Qwen3.5) is parsed only where ids are asked
for that tokenizer_config.json does not list.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core.json_values import is_whole, read_json
from .once import once

TEMPLATE_VARIABLES = ("enable_thinking", "thinking", "reasoning_effort", "reasoning_strength")
"""Settings that published templates read; a value is passed on only where its name stands."""
MARKER = re.compile(r"<\|[^\s|<>]+\|>")


class TokenizerFiles:
    """The tokenizer of one checkpoint directory. Ids are ints, tokens are strings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def file(self) -> Path:
        """The tokenizer.json, whether or not it is there."""
        return self.directory / "tokenizer.json"

    @cached_property
    def digest(self) -> str | None:
        """sha256 of tokenizer.json, None where there is none."""
        if not self.file.is_file():
            return None
        with self.file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """tokenizer_config.json, empty where there is none."""
        path = self.directory / "tokenizer_config.json"
        return read_json(path) if path.is_file() else {}

    @once
    def added(self) -> dict[int, str]:
        """Added tokens by id, from tokenizer_config.json or else tokenizer.json."""
        listed = self.settings.get("added_tokens_decoder")
        if not isinstance(listed, dict) or not listed:
            return self._parsed[0]
        return {
            int(key): str(entry.get("content"))
            for key, entry in listed.items()
            if str(key).isdecimal() and isinstance(entry, dict)
        }

    @once
    def ordinary(self) -> dict[int, str]:
        """Tokens of the vocabulary proper by id: what text is split into."""
        return {index: text for index, text in self._parsed[1].items() if index not in self.added}

    @once
    def _parsed(self) -> tuple[dict[int, str], dict[int, str]]:
        """(added tokens, vocabulary) of tokenizer.json; the merges, its largest part, are left."""
        whole = read_json(self.file) if self.file.is_file() else {}
        entries, model = whole.get("added_tokens"), whole.get("model")
        added = {
            entry["id"]: str(entry.get("content"))
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict) and is_whole(entry.get("id"))
        }
        vocab = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocab, dict):
            return added, {index: text for text, index in vocab.items() if isinstance(index, int)}
        rows = vocab if isinstance(vocab, list) else []
        return added, {index: str(row[0]) for index, row in enumerate(rows) if row}

    @property
    def top_id(self) -> int | None:
        """The largest id that is known, None where none is."""
        return max((*self.ordinary, *self.added), default=None)

    def unknown_markers(self, template: str) -> list[str]:
        """`<|...|>` texts of a template that are not added tokens: typos that never stop."""
        found = sorted(set(MARKER.findall(template)))
        return [text for text in found if text not in self.added.values()]


def template_variables(template: str) -> list[str]:
    """Which settings a template reads."""
    words = set(re.findall(r"\w+", template))
    return [name for name in TEMPLATE_VARIABLES if name in words]


def describe_difference(one: TokenizerFiles, other: TokenizerFiles) -> str | None:
    """How two tokenizers differ in ids, None where every id means the same."""
    if one.digest == other.digest:
        return None
    first = {**one.ordinary, **one.added}
    second = {**other.ordinary, **other.added}
    ids = sorted(
        index for index in first.keys() | second.keys() if first.get(index) != second.get(index)
    )
    if not ids:
        return None
    example = ids[0]
    there, here = (json.dumps(tokens.get(example)) for tokens in (first, second))
    return (
        f"{len(ids)} of {len(first)} ids mean other strings, e.g. {example}: {there} in the "
        f"target, {here} in the drafter"
    )
