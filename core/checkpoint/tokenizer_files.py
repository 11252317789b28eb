"""A checkpoint's tokenizer files, before transformers is asked to open them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError, ModelNotFound
from ..json_values import read_json
from .listing import list_files

UNREAD_TEMPLATES = ("chat_template.json", "processor_config.json")
"""Files of processors, which transformers does not read for a tokenizer."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")


def require_tokenizer_model(whole: dict[str, Any], file: Path) -> None:
    """CheckpointError where a tokenizer.json is JSON and yet no tokenizer."""
    if not isinstance(whole.get("model"), dict) or not isinstance(whole.get("added_tokens"), list):
        raise CheckpointError(
            f"{file} holds no tokenizer: 'model' or 'added_tokens' is missing; fetch it again"
        )


def require_tokenizer(directory: Path) -> list[str]:
    """Names of the files that hold the tokenizer.

    Raises ModelNotFound where there is none: transformers would make an empty one, which turns
    every text into nothing. Raises ConfigError where a JSON file of it is not JSON.
    """
    found = [path for pattern in TOKENIZER_FILES for path in list_files(directory, pattern)]
    if not found:
        raise ModelNotFound(
            f"{directory} has no tokenizer: none of {', '.join(TOKENIZER_FILES)} is there; fetch "
            "it beside config.json"
        )
    if (directory / "tokenizer_config.json").is_file():
        read_json(directory / "tokenizer_config.json")
    return [path.name for path in found]


@dataclass(frozen=True)
class Template:
    """A chat template, and the file that has it."""

    text: str
    file: Path


def find_template(directory: Path) -> Template | None:
    """The chat template of a checkpoint, None where there is none.

    In transformers' order: a file of its own, then tokenizer_config.json; then the files of
    processors, which transformers does not read for a tokenizer. Raises ConfigError for a file
    that cannot be read.
    """
    file = directory / "chat_template.jinja"
    if file.is_file():
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{file} cannot be read ({exc}); fetch it again") from exc
        if text:
            return Template(text, file)
    for name in ("tokenizer_config.json", *UNREAD_TEMPLATES):
        file = directory / name
        stated = read_json(file).get("chat_template") if file.is_file() else None
        if isinstance(stated, list):
            entries = [entry for entry in stated if isinstance(entry, dict)]
            named = {entry.get("name"): entry.get("template") for entry in entries}
            stated = named.get("default")
        if isinstance(stated, str) and stated:
            return Template(stated.removeprefix("\ufeff"), file)
    return None
