"""The file of a chat: its messages, its system prompt and how it is decoded, in one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.atomic_files import write_whole
from ...core.decode.chat import parse_reasoning
from ...core.decode.conversation import read_conversation
from ...core.errors import OptionError, OutputExists, PromptError, ResourceError, why_refused
from ...core.json_values import Kind, checked, parse_json, parse_object, shown
from ...core.options import GenerateOptions, parse_speculation
from ...core.regular_files import read_text
from ...core.settings import user_path
from ..input.sampling_fields import SAMPLING_FIELDS, sampling_from
from .session import ChatSession, ChatState

SCHEMA = "dflash.chat/1"
FIELDS = frozenset({"schema", "model", "system", "messages", "options"})
OPTIONS = frozenset({"max_tokens", "stop", "block_size", "draft_tokens", "gate", "speculation",
                     "reasoning", "sampling"})  # fmt: skip


def save_chat(session: ChatSession, name: str) -> Path:
    """Write the chat whole, or leave what is there.

    Raises OutputExists where a file stands there that is no chat, ResourceError where the system
    refuses.
    """
    path = _path(name)
    text = json.dumps(document(session), ensure_ascii=False, indent=1, allow_nan=False)
    try:
        if path.exists() and not _is_chat(path):
            raise OutputExists(f"{path} is there and holds no chat; take another name")
        write_whole(path, text.encode("utf-8") + b"\n")
    except (OSError, ValueError) as exc:  # ValueError: a name that no file can have
        raise ResourceError(f"{path} cannot be written: {_why(exc, 'take another name')}") from exc
    return path


def load_chat(name: str, before: ChatState) -> tuple[ChatState, str | None]:
    """(the chat in a file, the model that it was saved with); what its options leave out is as in
    `before`.

    Raises PromptError, which names the file, for anything that is no chat.
    """
    path = _path(name)
    try:
        text = read_text(path, "utf-8-sig")
    except UnicodeDecodeError as exc:
        raise PromptError(f"{path} is no chat: it is not UTF-8 text ({exc})") from exc
    except (OSError, ValueError) as exc:
        raise PromptError(f"{path} cannot be read: {_why(exc, 'check the name')}") from exc
    fields = parse_object(text, str(path), PromptError)
    try:
        return _state(fields, before), fields.get("model")
    except (PromptError, OptionError) as exc:
        raise PromptError(f"{path}: {exc}") from exc


def document(session: ChatSession) -> dict[str, Any]:
    """The object that is written."""
    state = session.state
    options, conversation = state.options, state.conversation
    return {
        "schema": SCHEMA,
        "model": session.model,
        "system": conversation.system,
        "messages": replace(conversation, system=None).messages(with_reasoning=True),
        "options": {
            "max_tokens": options.max_tokens,
            "stop": list(options.stop),
            "block_size": options.block_size,
            "draft_tokens": options.draft_tokens,
            "gate": options.gate,
            "speculation": state.speculation,
            "reasoning": state.reasoning,
            "sampling": options.sampling.to_dict(),
        },
    }


def _state(fields: Mapping[str, Any], before: ChatState) -> ChatState:
    if fields.get("schema") != SCHEMA:
        raise PromptError(f"schema is {shown(fields.get('schema'))}, expected '{SCHEMA}'")
    _require_known(fields, FIELDS, "the chat")
    if fields.get("model") is not None:
        checked("text", "model", fields["model"], PromptError)
    conversation = read_conversation(fields.get("system"), fields.get("messages"))
    stated = checked("object", "options", fields.get("options", {}), PromptError)
    _require_known(stated, OPTIONS, "options")
    reasoning = _optional("text", stated, "reasoning", before.reasoning)
    speculation = _required("text", stated, "speculation", before.speculation)
    return ChatState(
        conversation,
        _options(stated, before.options),
        parse_speculation(speculation),
        None if reasoning is None else parse_reasoning(reasoning),
    )


def _options(stated: Mapping[str, Any], before: GenerateOptions) -> GenerateOptions:
    sampling = checked("object", "sampling", stated.get("sampling", {}), PromptError)
    _require_known(sampling, frozenset(SAMPLING_FIELDS), "sampling")
    given = {name: value for name, value in sampling.items() if value is not None}
    no_seed = replace(before.sampling, seed=None)
    return replace(
        before,
        max_tokens=_required("whole", stated, "max_tokens", before.max_tokens),
        stop=tuple(_required("texts", stated, "stop", list(before.stop))),
        block_size=_optional("whole", stated, "block_size", before.block_size),
        draft_tokens=_optional("whole", stated, "draft_tokens", before.draft_tokens),
        gate=_required("switch", stated, "gate", before.gate),
        sampling=sampling_from(given, no_seed if "seed" in sampling else before.sampling),
    )


def _required(kind: Kind, stated: Mapping[str, Any], name: str, before: Any) -> Any:
    return checked(kind, name, stated.get(name, before), PromptError)


def _optional(kind: Kind, stated: Mapping[str, Any], name: str, before: Any) -> Any:
    """A value that may be null, which is what it is where nothing was asked for."""
    value = stated.get(name, before)
    return None if value is None else checked(kind, name, value, PromptError)


def _require_known(fields: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(fields) - known)
    if unknown:
        raise PromptError(f"{where} has the field {shown(unknown[0])}, which a chat has not")


def _path(name: str) -> Path:
    if not name:
        raise PromptError("give the name of a file")
    return user_path(name)


def _is_chat(path: Path) -> bool:
    """Whether an older file of a chat stands there, which may be replaced."""
    try:
        return bool(parse_json(read_text(path, "utf-8-sig")).get("schema") == SCHEMA)
    except (OSError, ValueError, AttributeError):
        return False


def _why(exc: OSError | ValueError, advice: str) -> str:
    return why_refused(exc, advice) if isinstance(exc, OSError) else str(exc)
