"""Calls as `<function=NAME><parameter=NAME>VALUE</parameter></function>`, the markup of Qwen's
coders and of Qwen3.5: read strictly, and each value held against the type that is declared.

mlx-lm's parser of it makes one call of two functions, cuts a value at a closing tag inside it,
takes a text that reads `null` for no text, any text but `true` for false, and turns a text into a
number where its type is a list. So values are read here as well, and the first reading wins that
the declared type can hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from .markers import ToolParser, Tools

FUNCTION = "<function="
OPENING = re.compile(r"\s*<function=([^\s<>]+)>\s*")
CLOSING = re.compile(r"\s*</function>\s*")
PARAMETER = re.compile(
    r"\s*<parameter=([^\s<>]+)>(.*?)</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL
)
NESTED = re.compile(r"^\s*<parameter=", re.MULTILINE)
"""Inside a value: either the value speaks of this markup, or a closing tag was left out."""
SWITCHES = {"true": True, "false": False}
NAMES = {
    "string": ("string", "str", "text", "varchar", "char", "enum"),
    "boolean": ("boolean", "bool", "binary"),
    "null": ("null", "none"),
}
"""JSON's types, and other names of them."""
BEGINNINGS = {
    "integer": ("int", "uint", "long", "short", "unsigned"),
    "number": ("num", "float", "double"),
    "array": ("arr", "list"),
    "object": ("obj", "dict"),
}
"""JSON's types, and with what other names of them begin (int64, dict[str, int])."""


def parse_functions(body: str, parse: ToolParser, tools: Tools) -> list[dict[str, Any]]:
    """A dict of name and arguments for each function. ValueError where anything is left over, a
    parameter is there twice, or a declared type cannot hold its value; whatever `parse` raises."""
    calls, position = [], 0
    while position < len(body):
        opening = OPENING.match(body, position)
        if opening is None:
            raise ValueError("text between functions")
        name, begin, position = opening[1], position, opening.end()
        values: dict[str, str] = {}
        while (found := PARAMETER.match(body, position)) is not None:
            position = found.end()
            if found[1] in values or NESTED.search(found[2]):
                raise ValueError("a parameter that is there twice, or inside another one")
            values[found[1]] = found[2].removeprefix("\n").removesuffix("\n")
        closing = CLOSING.match(body, position)
        if closing is None:
            raise ValueError("a function that is not closed")
        position = closing.end()
        parsed = parse(body[begin:position].strip(), list(tools))["arguments"]
        schemas = declared_parameters(name, tools)
        arguments = {
            key: _value(text, parsed.get(key), schemas.get(key)) for key, text in values.items()
        }
        calls.append({"name": name, "arguments": arguments})
    return calls


def declared_parameters(name: str, tools: Tools) -> Mapping[str, Any]:
    """Schemas of the parameters that the function of that name declares."""
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            declared: Mapping[str, Any] = (function.get("parameters") or {}).get("properties") or {}
            return declared
    return {}


def _value(text: str, parsed: Any, schema: Any) -> Any:
    """The reading of a value that its declared type can hold; ValueError where none is."""
    types = declared_types(schema)
    was_cut = "</parameter>" in text  # and the parser has only what stands before
    if types is None:
        return text if was_cut else parsed
    switch = SWITCHES.get(text.strip().lower())
    readings = [_as_json(text), *([] if switch is None else [switch])]
    if not was_cut and not isinstance(parsed, bool):
        readings.append(parsed)
    for one in (*readings, text):
        if type_of(one) & types:
            return one
    raise ValueError("a value that the declared type cannot hold")


def _as_json(text: str) -> Any:
    """A number, switch, list or object; a text in quotes is none of them, and so is no JSON."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) else value


def declared_types(schema: Any) -> frozenset[str] | None:
    """JSON's names of the types that a schema allows; None where it does not say, or says it in a
    way that is not known here."""
    if not isinstance(schema, Mapping):
        return None
    stated = schema.get("type")
    choices = schema.get("anyOf") or schema.get("oneOf")
    if stated is None and isinstance(choices, list) and choices:
        each = [declared_types(one) for one in choices]
    else:
        each = [_named(one) for one in (stated if isinstance(stated, list) else [stated])]
    found: set[str] = set()
    for types in each:
        if types is None:
            return None
        found |= types
    return frozenset(found | ({"null"} if schema.get("nullable") is True else set()))


def _named(stated: Any) -> frozenset[str] | None:
    if not isinstance(stated, str):
        return None
    name = stated.strip().lower()
    exact = [kind for kind, names in NAMES.items() if name in names]
    begun = [kind for kind, beginnings in BEGINNINGS.items() if name.startswith(beginnings)]
    return frozenset({[*exact, *begun][0]}) if exact or begun else None


def type_of(value: Any) -> frozenset[str]:
    """JSON's names of the types that a value is of; none where JSON has no such value."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number"} if math.isfinite(value) else ())
    names: dict[type, str] = {str: "string", list: "array", dict: "object", type(None): "null"}
    name = names.get(type(value))
    return frozenset({name} if name else ())
