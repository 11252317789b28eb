"""A checkpoint's tokenizer files, before transformers is asked to open them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, ModelNotFound
from ..json_values import read_json
from ..regular_files import read_text
from .listing import list_files, require_files

UNREAD_TEMPLATES = ("chat_template.json", "processor_config.json")
"""Files of processors, which transformers does not read for a tokenizer."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")

OPENED = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")
"""What transformers and mlx-lm may open of a checkpoint, beside its weights."""


def require_tokenizer(directory: Path) -> list[str]:
    """Names of the files that hold the tokenizer.

    Raises ModelNotFound where there is none: transformers would make an empty one, which turns
    every text into nothing. Raises ConfigError where a JSON file of it is not JSON.
    """
    require_files(directory, *OPENED)
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
            text = read_text(file, "utf-8-sig")
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
