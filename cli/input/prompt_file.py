"""A file of several prompts: one a line, or .jsonl with `text`, `user` (a chat turn) or
`prompt_ids`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.errors import PromptError
from ...core.json_values import are_whole, parse_object, text_lines
from .prompt import CHAT_OR_RAW, RAW, encode_prompt, read_text_file

KEYS = ("text", "user", "prompt_ids")


def read_prompt_lines(file: Path) -> list[dict[str, Any]]:
    """One object a prompt, each with one of KEYS. Raises PromptError, which names the line."""
    lines = [line for line in text_lines(read_text_file(file)) if line.strip()]
    if file.suffix == ".jsonl":
        prompts = [_parse(file, number, line) for number, line in enumerate(lines, start=1)]
    else:
        prompts = [{"text": line} for line in lines]
    if not prompts:
        raise PromptError(f"{file} has no prompts; write one a line")
    return prompts


def encode_prompt_line(tokenizer: Any, prompt: dict[str, Any]) -> list[int]:
    """Ids of `text` as it stands, of `user` as a chat turn where there is a template, or the ids
    themselves."""
    if "text" in prompt:
        return encode_prompt(tokenizer, prompt["text"], RAW)
    if "user" in prompt:
        return encode_prompt(tokenizer, prompt["user"], CHAT_OR_RAW)
    ids: list[int] = prompt["prompt_ids"]
    return ids


def _parse(file: Path, number: int, line: str) -> dict[str, Any]:
    value = parse_object(line, f"{file}, prompt {number}", PromptError, "; give one a line")
    if not any(_is_usable(value, key) for key in KEYS):
        raise PromptError(
            f"{file}, prompt {number} has neither a 'text' nor a 'user' that is text, nor "
            "'prompt_ids' that are whole numbers"
        )
    return {key: value[key] for key in KEYS if _is_usable(value, key)}


def _is_usable(value: dict[str, Any], key: str) -> bool:
    found = value.get(key)
    if key != "prompt_ids":
        return isinstance(found, str) and found != ""
    return are_whole(found) and bool(found)
