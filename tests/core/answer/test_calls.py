"""Calls of tools as a model writes them, by mlx-lm's parsers; what is doubtful is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mlx_lm.tool_parsers import glm47, json_tools, mistral, pythonic, qwen3_coder

from dflash_suite.core.answer.calls import ToolCall, is_inside_value, parse_calls
from dflash_suite.core.answer.function_markup import declared_types

pytestmark = pytest.mark.quick

SCHEMAS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "flag": {"type": "boolean"},
    "names": {"type": "array"},
    "table": {"type": "object"},
    "maybe": {"type": ["string", "null"]},
    "some": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "any": {"description": "whatever"},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": SCHEMAS}}}]


def xml(*values: tuple[str, str], name: str = "f") -> str:
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values)
    return f"\n<function={name}>\n{inner}</function>\n"


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ('\n{"name": "f", "arguments": {"a": [1, "é"]}}\n', [("f", '{"a": [1, "é"]}')]),
        ('{"name": "f", "arguments": {}}', [("f", "{}")]),
        ('{"name": "f"}', [("f", "{}")]),
        ('{"name": "f", "arguments": null}', [("f", "{}")]),
        ('{"name": "f", "arguments": ""}', [("f", "{}")]),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", '{"a": 1}')]),
        ('[{"name": "f"}, {"name": "g"}]', [("f", "{}"), ("g", "{}")]),
        ('{"name": "f", "arguments": {"a": "\\ud83d"}}', [("f", '{"a": "\\ud83d"}')]),
        ('{"name": "f", "arguments": {"a": "\\ud83d\\ude00"}}', [("f", '{"a": "😀"}')]),
    ],
)
def test_json(body: str, calls: list[tuple[str, str]]) -> None:
    assert parse_calls(body, json_tools.parse_tool_call, TOOLS) == tuple(
        ToolCall(name, arguments) for name, arguments in calls
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "f(1)",
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": 0}',
        '{"name": "f", "arguments": "a"}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": "\\x"}}',
        '{"name": "f", "parameters": {"a": 1}}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        '["f"]',
        "[]",
        "null",
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000,
        '{"name": "f", "arguments": {"a": ' + "9" * 5_000 + "}}",
    ],
)
def test_what_is_no_json_call(body: str) -> None:
    assert parse_calls(body, json_tools.parse_tool_call, TOOLS) == ()


def test_an_id_of_the_models_own() -> None:
    body = '[{"name": "f", "arguments": {"a": 1}, "id": "abc"}]'
    assert parse_calls(body, mistral.parse_tool_call, TOOLS) == (ToolCall("f", '{"a": 1}', "abc"),)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "two\nlines ", "two\nlines "),
        ("text", "123", "123"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", '"quoted"', '"quoted"'),
        ("text", "null", "null"),
        ("text", "a </parameter> b", "a </parameter> b"),
        ("text", "", ""),
        ("count", "12", 12),
        ("count", "12.0", 12),
        ("count", "12345678901234567891", 12345678901234567891),
        ("share", "0.5", 0.5),
        ("share", "2", 2),
        ("flag", "true", True),
        ("flag", "False", False),
        ("names", '["a", 1]', ["a", 1]),
        ("names", "['a']", ["a"]),
        ("table", '{"a": null}', {"a": None}),
        ("maybe", "123", "123"),
        ("maybe", "abc", "abc"),
        ("maybe", "null", None),
        ("some", "12", 12),
        ("some", "null", None),
        ("any", "[1]", [1]),
        ("any", "abc", "abc"),
        ("undeclared", "12", "12"),
    ],
)
def test_a_value_is_of_its_declared_type(key: str, text: str, value: Any) -> None:
    (call,) = parse_calls(
        xml((key, text), ("undeclared2", "x")), qwen3_coder.parse_tool_call, TOOLS
    )
    assert call == ToolCall("f", json.dumps({key: value, "undeclared2": "x"}))
    assert type(json.loads(call.arguments)[key]) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("count", "twelve"),
        ("count", "1.5"),
        ("count", "null"),
        ("count", ""),
        ("share", "nan"),
        ("share", "1e999"),
        ("flag", "yes"),
        ("flag", "1"),
        ("flag", "null"),
        ("names", "a, b"),
        ("names", '{"a": 1}'),
        ("table", "[1]"),
        ("table", "null"),
        ("some", "abc"),
        ("text", "a\n<parameter=b>\nc"),  # a closing tag was left out, or it is a text about them
    ],
)
def test_a_value_that_its_type_cannot_hold_makes_no_call(key: str, text: str) -> None:
    assert (
        parse_calls(xml(("undeclared", "x"), (key, text)), qwen3_coder.parse_tool_call, TOOLS) == ()
    )


def test_functions_of_one_block_are_calls_of_their_own() -> None:
    body = xml(("text", "a")) + xml(("count", "1")) + xml(name="g")
    assert parse_calls(body, qwen3_coder.parse_tool_call, TOOLS) == (
        ToolCall("f", '{"text": "a"}'),
        ToolCall("f", '{"count": 1}'),
        ToolCall("g", "{}"),
    )


@pytest.mark.parametrize(
    "body",
    [
        "\n<function=f>\n<parameter=text>\na\n</parameter>\n",
        "\n<function=f>\n<parameter=text>\na\n</function>\n",
        "\n<function=>\n</function>\n",
        xml(("text", "a")) + "and so on",
        xml(("text", "a"), ("text", "b")),
        "\n<function=f>\nwith text\n</function>",
    ],
)
def test_markup_with_something_left_over_is_no_call(body: str) -> None:
    assert parse_calls(body, qwen3_coder.parse_tool_call, TOOLS) == ()


def test_what_a_parser_makes_up_is_no_call() -> None:
    """glm47 names what it cannot read, and gives it as an argument `raw`."""
    assert parse_calls("no: {call", glm47.parse_tool_call, TOOLS) == ()
    body = "f<arg_key>text</arg_key><arg_value>a</arg_value>"
    assert parse_calls(body, glm47.parse_tool_call, TOOLS) == (ToolCall("f", '{"text": "a"}'),)
    assert parse_calls("[f(a={1, 2})]", pythonic.parse_tool_call, TOOLS) == ()


@pytest.mark.parametrize(
    ("body", "inside"),
    [
        ('{"name": "f", "arguments": {"a": "x', True),
        ('{"name": "f", "arguments": {"a": 1', False),
        ('{"name": "f"}', False),
        ("<function=f><parameter=a>x", True),
        ("<function=f><parameter=a>x</parameter></function>", False),
        ("<function=f><parameter=a>x</function>", False),
        ("text", False),
    ],
)
def test_a_closing_marker_inside_a_value(body: str, inside: bool) -> None:
    assert is_inside_value(body) is inside


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "str"}, {"string"}),
        ({"type": "int64"}, {"integer"}),
        ({"type": "dict[str, int]"}, {"object"}),
        ({"type": "struct"}, None),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "number", "nullable": True}, {"number", "null"}),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/x"}]}, None),
        ({"$ref": "#/x"}, None),
        (None, None),
        ("string", None),
    ],
)
def test_declared_types(schema: Any, types: set[str] | None) -> None:
    assert declared_types(schema) == types
