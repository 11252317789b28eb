"""A checkpoint's tokenizer files, before transformers is asked to open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ModelNotFound
from .listing import list_files
from .target_config import read_json

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
