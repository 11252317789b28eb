"""Where the prompt comes from, and how it becomes ids."""

from __future__ import annotations

import os
import select
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import OptionError, PromptError

if TYPE_CHECKING:
    from ...core.decode.chat import Chat

BUILT_IN = "Write a Python class `Point`: A point with x and y coordinates."
BYTE_ORDER_MARK = "\ufeff"
"""What some editors put in front of a text; it is no part of it."""
STDIN_WAIT_SEC = 2.0
"""Patience with a silent pipe, only where nothing at all was asked for."""


@dataclass(frozen=True)
class PromptInput:
    """What is asked for: a prompt or a file, or a file of requests, and how it is encoded.

    chat: None means a chat turn where the tokenizer has a template, else raw text.
    """

    prompt: str | None = None
    file: Path | None = None
    requests: str | None = None
    chat: bool | None = None
    system: str | None = None
    reasoning: str | None = None


RAW = PromptInput(chat=False)
CHAT_OR_RAW = PromptInput()


@dataclass(frozen=True)
class PromptSource:
    """A prompt's text, and a note where it was not the user's own."""

    text: str
    note: str | None = None


def read_prompt(argument: str | None, file: Path | None, *, patient: bool) -> PromptSource:
    """PROMPT, --prompt-file, stdin (`-`, a pipe or a file), or the built-in one; never trimmed.

    The built-in prompt is for those who gave nothing at all: on a terminal, or where there is no
    input. Raises PromptError for one that is empty. patient: wait for a pipe as long as it takes;
    otherwise a pipe that stays silent means that nobody meant it.
    """
    if argument is not None and file is not None:
        raise OptionError("give PROMPT or --prompt-file, not both")
    if file is not None:
        return PromptSource(_not_empty(_decode(_read_file(file), str(file)), str(file)))
    if argument == "-":
        return PromptSource(_not_empty(_decode(_read_stdin(), "stdin"), "stdin"))
    if argument is not None:
        ignored = "stdin is ignored: PROMPT was given" if _stdin_has_text() else None
        return PromptSource(argument.removeprefix(BYTE_ORDER_MARK), ignored)
    if sys.stdin is None or sys.stdin.isatty() or not (patient or _stdin_speaks()):
        return PromptSource(BUILT_IN, f"no prompt given, using: {BUILT_IN}")
    text = _decode(_read_stdin(), "stdin")
    if not text and not _stdin_was_given():
        return PromptSource(BUILT_IN, f"no prompt given, using: {BUILT_IN}")
    return PromptSource(_not_empty(text, "stdin"))


def encode_prompt(tokenizer: Any, text: str, asked: PromptInput) -> list[int]:
    """Ids of a chat turn through the tokenizer's template, or of raw text as it stands.

    Raises OptionError for --system or --reasoning with raw text, PromptError where --chat has no
    template, and as render_chat.
    """
    from ...core.decode.chat import encode_text, render_chat

    chat, system, reasoning = asked.chat, asked.system, asked.reasoning
    has_template = bool(tokenizer.has_chat_template)
    if chat is None:
        chat = has_template
    if not chat:
        if system is not None:
            raise OptionError("--system needs a chat template; it cannot be used with raw text")
        if reasoning is not None:
            raise OptionError("--reasoning needs a chat template; it cannot be used with raw text")
        return encode_text(tokenizer, text)
    if not has_template:
        raise PromptError(
            "--chat was asked for, but this tokenizer has no chat template; use --raw"
        )
    return render_chat(tokenizer, as_chat(text, asked))


def as_chat(text: str, asked: PromptInput) -> Chat:
    """A text as the user's turn, behind the system prompt that was asked for."""
    from ...core.decode.chat import Chat

    system = asked.system
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    return Chat(messages, reasoning=asked.reasoning)


def reasoning_note(tokenizer: Any, text: str, asked: PromptInput) -> str | None:
    """What to say where mlx-lm would render this chat turn otherwise; None where it would not."""
    from ...core.decode.chat import differs_from_mlx_lm

    is_chat = asked.chat is not False and bool(tokenizer.has_chat_template)
    if not is_chat or asked.reasoning is not None:
        return None
    if not differs_from_mlx_lm(tokenizer, as_chat(text, asked)):
        return None
    return (
        "reasoning: the template's own default; mlx-lm would set enable_thinking and render "
        "another prompt (--reasoning on gives that)"
    )


def read_text_file(file: Path) -> str:
    """The text of a UTF-8 file. Raises PromptError."""
    return _decode(_read_file(file), str(file))


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise PromptError(f"the prompt file {file} cannot be read: {exc.strerror}") from exc


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")  # without a byte order mark
    except UnicodeDecodeError as exc:
        raise PromptError(f"{where} is not UTF-8 text ({exc}); convert it first") from exc


def _read_stdin() -> bytes:
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def _not_empty(text: str, where: str) -> str:
    if not text:
        raise PromptError(f"the prompt is empty: {where} holds no text; give some to answer")
    return text


def _stdin_was_given() -> bool:
    """Whether somebody connected stdin to a pipe or a file; /dev/null is nobody's prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _stdin_has_text() -> bool:
    """Whether a pipe or file at stdin holds something already; nothing is waited for or taken."""
    if sys.stdin is None or not _stdin_was_given():
        return False
    ready = bool(select.select([sys.stdin.fileno()], [], [], 0)[0])
    return ready and bool(getattr(sys.stdin.buffer, "peek", bytes)(1))


def _stdin_speaks() -> bool:
    """False where stdin is a pipe that says nothing for STDIN_WAIT_SEC."""
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # a stream without a descriptor never blocks
        return True
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return True
    return bool(select.select([descriptor], [], [], STDIN_WAIT_SEC)[0])
