"""What a model wrote between the markers of a tool call, as calls; or nothing, and then it is text.

mlx-lm's parsers are written for models that err in no way: they raise errors of many kinds, make
up names, and let values pass that no client can read. Whatever is doubtful is left to the reader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .function_markup import FUNCTION, declared_parameters, parse_functions
from .markers import ToolParser, Tools

CALL_KEYS = frozenset({"name", "id", "type"})
"""What a call may have beside its arguments."""
RAW = frozenset({"raw"})
"""The one argument under which a parser returns text that it could not read."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a function. arguments: the text of a JSON object, `{}` where there are none; id:
    the model's own, where it writes one."""

    name: str
    arguments: str
    id: str | None = None


def parse_calls(body: str, parse: ToolParser, tools: Tools) -> tuple[ToolCall, ...]:
    """The calls in the text between two markers; none where it cannot be read without doubt."""
    try:
        if body.lstrip().startswith(FUNCTION):
            found: Any = parse_functions(body, parse, tools)
        else:
            found = parse(body, list(tools))
        return tuple(_call(one, tools) for one in (found if isinstance(found, list) else [found]))
    except Exception:  # the parsers raise of every kind, and a deep value a RecursionError
        return ()


def is_inside_value(body: str) -> bool:
    """Whether a call that ends here would end within a value that is text: a closing marker there
    is part of the value."""
    stripped = body.strip()
    if stripped[:1] in ("{", "["):
        try:
            json.loads(stripped)
        except json.JSONDecodeError as exc:
            return exc.msg.startswith("Unterminated string")
        except (ValueError, RecursionError):
            return False
    is_whole = stripped.endswith("</function>")
    return not is_whole and body.rfind("<parameter=") > body.rfind("</parameter>")


def _call(found: Any, tools: Tools) -> ToolCall:
    """ValueError for what is no call."""
    name, stated = found["name"], found.get("arguments")
    if not isinstance(name, str) or not name.strip():
        raise ValueError("a call without a name")
    if "arguments" not in found and set(found) - CALL_KEYS:
        raise ValueError("a call whose arguments stand under another key")
    arguments = json.loads(stated.strip() or "{}") if isinstance(stated, str) else stated
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no object")
    if set(arguments) == RAW and "raw" not in declared_parameters(name, tools):
        raise ValueError("a call that the parser could not read")
    given = found.get("id")
    return ToolCall(name, _as_json(arguments), given if isinstance(given, str) and given else None)


def _as_json(arguments: dict[str, Any]) -> str:
    """ValueError or TypeError for values that JSON has not, as NaN and sets."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a pair of surrogates, which stays an escape
        return json.dumps(arguments, allow_nan=False)
    return text
