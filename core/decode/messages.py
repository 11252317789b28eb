"""Chat messages in OpenAI's forms, as the templates of text models take them.

A template that gets a list where it expects a text drops it, or writes Python's repr; so parts are
joined here, and what is no text is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import PromptError

MAY_BE_EMPTY = ("assistant", "tool")
"""Roles whose message may have no content: a call of a tool, and a tool that answers nothing."""
Message = dict[str, Any]


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with text contents and with arguments of calls as objects.

    Raises PromptError, which names the message, for what no template of a text model can render.
    """
    if not messages:
        raise PromptError("messages is empty, expected at least one message")
    return [_plain(f"message {number}", one) for number, one in enumerate(messages, start=1)]


def _plain(where: str, message: Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"{where} is {message!r}, expected an object with a role that is a text")
    role, content = message["role"], message.get("content")
    if content is None and role not in MAY_BE_EMPTY:
        raise PromptError(f"{where} ({role}) has no content, expected a text")
    made = {key: value for key, value in message.items() if value is not None}
    made["content"] = "" if content is None else _text(f"{where} ({role})", content)
    if "tool_calls" in made:
        made["tool_calls"] = _calls(f"{where} ({role})", made["tool_calls"])
    return made


def _text(where: str, content: object) -> str:
    """A text, or the texts of a list of parts, one after another."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PromptError(
            f"{where}: content is {content!r}, expected a text or a list of parts of type 'text'"
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            named = f"of type '{kind}'" if isinstance(kind, str) and kind != "text" else repr(part)
            raise PromptError(
                f"{where}: content has a part {named}, which a text model cannot read; give parts "
                'as {"type": "text", "text": ...}'
            )
        texts.append(text)
    return "".join(texts)


def _calls(where: str, calls: object) -> list[Message]:
    """Calls of tools; arguments given as JSON text, OpenAI's form, become the object in it."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise PromptError(f"{where}: tool_calls is {calls!r}, expected a list of objects")
    made = []
    for call in calls:
        inner = call.get("function", call)
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise PromptError(f"{where}: a tool call is {call!r}, expected a function with a name")
        inner = {**inner, "arguments": _arguments(where, inner.get("arguments"))}
        made.append({**call, "function": inner} if "function" in call else inner)
    return made


def _arguments(where: str, stated: object) -> Message:
    value = stated
    if isinstance(stated, str):
        try:
            value = json.loads(stated) if stated.strip() else {}
        except (ValueError, RecursionError) as exc:
            raise PromptError(
                f"{where}: the arguments of a tool call are no JSON ({exc}): {stated!r}"
            ) from exc
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PromptError(
            f"{where}: the arguments of a tool call are {stated!r}, expected a JSON object"
        )
    return value
