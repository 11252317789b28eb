"""Answers in typed pieces, by hand for each kind of markup, and for any portions of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tool_parsers import json_tools, mistral, qwen3_coder

from dflash_suite.core.answer.calls import ToolCall
from dflash_suite.core.answer.markers import Markers
from dflash_suite.core.answer.split import (
    AnswerText,
    Piece,
    Reasoning,
    Splitter,
    ToolCalls,
    merged,
    splitter_for,
)
from tests.kit.marked_tokenizer import JSON_CALLS, marked_tokenizer

pytestmark = pytest.mark.quick

THINK = ("<think>", "</think>")
CALL = ("<tool_call>", "</tool_call>")
QWEN3 = Markers(THINK, CALL, json_tools.parse_tool_call)
CODER = Markers(None, CALL, qwen3_coder.parse_tool_call)
QWEN35 = Markers(THINK, CALL, qwen3_coder.parse_tool_call)
TO_THE_END = Markers(None, ("[TOOL_CALLS]", ""), mistral.parse_tool_call)
PLAIN = Markers()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}
            },
        },
    }
]
GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
READ = ToolCalls(GOOD, (ToolCall("read", '{"path": "a"}'),))
BAD = '<tool_call>\n{"name": "read", "arguments": {"path"}\n</tool_call>'
XML = "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"


def split(text: Sequence[str] | str, markers: Markers, **asked: Any) -> list[Piece]:
    """The pieces of a text, whole or in portions."""
    splitter = Splitter(markers, **{"tools": TOOLS, **asked})
    pieces = [piece for one in ([text] if isinstance(text, str) else text)
              for piece in splitter.feed(one)]  # fmt: skip
    return merged([*pieces, *splitter.finish()])


CASES: dict[str, tuple[Markers, dict[str, Any], str, list[Piece]]] = {
    "thought, text": (QWEN3, {}, "<think>\nhm\n</think>\n\nYes.\n", [
        Reasoning("hm"), AnswerText("Yes.\n")]),
    "the prompt opened the block": (QWEN3, {"in_reasoning": True}, "hm\n</think>\n\nYes.", [
        Reasoning("hm"), AnswerText("Yes.")]),
    "which the model opens again": (QWEN3, {"in_reasoning": True}, "<think>\nhm</think>Yes.", [
        Reasoning("hm"), AnswerText("Yes.")]),
    "empty block": (QWEN3, {"in_reasoning": True}, "\n</think>\n\nYes.", [AnswerText("Yes.")]),
    "block that is not closed": (QWEN3, {"in_reasoning": True}, "\nhm\n<tool_call>", [
        Reasoning("hm\n<tool_call>")]),
    "nothing but newlines behind it": (QWEN3, {}, "<think>hm</think>\n\n", [Reasoning("hm")]),
    "half of a closing marker": (QWEN3, {"in_reasoning": True}, "hm</thi", [
        Reasoning("hm</thi")]),
    "second block": (QWEN3, {}, "<think>\na\n</think>\n\nb\n\n<think>\nc\n</think>\n\nd", [
        Reasoning("a"), AnswerText("b"), Reasoning("\nc"), AnswerText("\n\nd")]),
    "closing marker without a block": (QWEN3, {}, "a</think>b", [AnswerText("a</think>b")]),
    "thought, call": (QWEN3, {"in_reasoning": True}, f"hm\n</think>\n\n{GOOD}", [
        Reasoning("hm"), READ]),
    "text, call": (QWEN3, {}, f"Reading.\n\n{GOOD}", [AnswerText("Reading."), READ]),
    "calls, text": (QWEN3, {}, f"{GOOD}\n{GOOD}\nDone.", [READ, READ, AnswerText("Done.")]),
    "text, call, text": (QWEN3, {}, f"One\n{GOOD}\n\nTwo\n", [
        AnswerText("One"), READ, AnswerText("\n\nTwo\n")]),
    "call, newlines": (QWEN3, {}, f"{GOOD}\n\n", [READ]),
    "bad call": (QWEN3, {}, f"One\n\n{BAD}\nTwo", [AnswerText(f"One\n\n{BAD}\nTwo")]),
    "bad call behind a thought": (QWEN3, {}, f"<think>\n</think>\n\n{BAD}\n", [
        AnswerText(f"{BAD}\n")]),
    "bad call, good call": (QWEN3, {}, f"{BAD}\n{GOOD}", [AnswerText(BAD), READ]),
    "cut call": (QWEN3, {}, f"One\n{GOOD[:-3]}", [AnswerText(f"One\n{GOOD[:-3]}")]),
    "closing marker inside a value": (
        QWEN3, {}, '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>b', [
            ToolCalls('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
                      (ToolCall("f", '{"a": "</tool_call>"}'),)), AnswerText("b")]),
    "value that is never closed": (
        QWEN3, {}, f'<tool_call>{{"name": "a</tool_call>\nb {GOOD}\n', [
            AnswerText('<tool_call>{"name": "a</tool_call>\nb '), READ]),
    "no tools": (QWEN3, {"tools": None}, f"a\n{GOOD}\n", [AnswerText(f"a\n{GOOD}\n")]),
    "empty list of tools": (QWEN3, {"tools": []}, GOOD, [AnswerText(GOOD)]),
    "coder": (CODER, {}, f"Reading.\n{XML}", [
        AnswerText("Reading."), ToolCalls(XML, (ToolCall("read", '{"path": "a"}'),))]),
    "coder, wrong type": (CODER, {}, XML.replace("path", "lines"), [
        AnswerText(XML.replace("path", "lines"))]),
    "coder, marker inside a value": (CODER, {}, XML.replace("\na\n", "\n</tool_call>\n"), [
        ToolCalls(XML.replace("\na\n", "\n</tool_call>\n"),
                  (ToolCall("read", '{"path": "</tool_call>"}'),))]),
    "coder, two functions": (CODER, {}, "<tool_call><function=now></function>\n<function=read>"
                             "<parameter=lines>2</parameter></function></tool_call>", [
        ToolCalls("<tool_call><function=now></function>\n<function=read>"
                  "<parameter=lines>2</parameter></function></tool_call>",
                  (ToolCall("now", "{}"), ToolCall("read", '{"lines": 2}')))]),
    "coder does not think": (CODER, {}, "<think>\na", [AnswerText("<think>\na")]),
    "Qwen3.5": (QWEN35, {"in_reasoning": True}, f"hm\n</think>\n\n{XML}", [
        Reasoning("hm"), ToolCalls(XML, (ToolCall("read", '{"path": "a"}'),))]),
    "call without a closing marker": (TO_THE_END, {}, 'a[TOOL_CALLS][{"name": "f"}]', [
        AnswerText("a"), ToolCalls('[TOOL_CALLS][{"name": "f"}]', (ToolCall("f", "{}"),))]),
    "that was cut": (TO_THE_END, {}, 'a[TOOL_CALLS][{"name', [
        AnswerText('a[TOOL_CALLS][{"name')]),
    "no markers": (PLAIN, {}, "\n\n<think>a</think>\n<tool_call>\n", [
        AnswerText("\n\n<think>a</think>\n<tool_call>\n")]),
    "nothing": (QWEN3, {}, "", []),
    "stop string": (QWEN3, {"stop": ["END"]}, "<think>END</think>\n\na END b", [
        Reasoning("END"), AnswerText("a ")]),
    "no stop string over a call": (QWEN3, {"stop": ["ab"]}, f"a{GOOD}b", [
        AnswerText("a"), READ, AnswerText("b")]),
    "stop string in a value": (QWEN3, {"stop": ["path"]}, GOOD, [READ]),
    "newline as a stop string": (QWEN3, {"stop": ["\n"]}, "<think>\n</think>\n\na\nb", [
        AnswerText("a")]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_pieces_by_hand(case: str) -> None:
    markers, asked, text, wanted = CASES[case]
    assert split(text, markers, **asked) == wanted
    assert split(list(text), markers, **asked) == wanted


def test_what_is_certain_comes_at_once() -> None:
    splitter = Splitter(QWEN3, TOOLS, ["stop"], in_reasoning=True)
    assert splitter.feed("so ") == [Reasoning("so ")]
    assert splitter.feed("on\n</th") == [Reasoning("on")]
    assert splitter.feed("e") == [Reasoning("\n</the")]
    assert splitter.feed("</think>\n\nAn") == [AnswerText("An")]
    assert splitter.feed(" answer <s") == [AnswerText(" answer <")], "and s may begin stop"
    assert splitter.feed("t") == []
    assert splitter.feed("r<tool") == [AnswerText("str")]
    assert splitter.feed("_call>") == [] and splitter.state == "call"
    assert splitter.feed(GOOD.removeprefix("<tool_call>")) == [READ]
    assert splitter.feed("a stop b") == [AnswerText("a ")] and splitter.stopped == "stop"
    assert splitter.feed("more") == [] and splitter.finish() == []


def test_the_splitter_of_a_prompt(tmp_path: Path) -> None:
    template = JSON_CALLS + "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = marked_tokenizer(tmp_path, template)
    ids = tokenizer.encode("x<think>\n", add_special_tokens=False)
    splitter = splitter_for(tokenizer, ids, TOOLS, ["b"])
    assert splitter.feed(f"hm\n</think>\n\n{GOOD}\nab") == [Reasoning("hm"), READ, AnswerText("a")]
    assert splitter_for(tokenizer, ids[:1]).feed("hm") == [AnswerText("hm")]


FRAGMENTS = ["a", "\n", "\n\n", *THINK, *CALL, GOOD, BAD, XML, "<", "</tool", "think>", '{"', '"}',
             "<function=read>", "</function>", "<parameter=path>", "</parameter>", "[TOOL_CALLS]",
             '[{"name": "f"}]', "st", "op", "stop"]  # fmt: skip


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=14),
    markers=st.sampled_from([QWEN3, CODER, QWEN35, TO_THE_END, PLAIN]),
    stop=st.sampled_from([(), ("stop",), ("\n",), ("op", "sto")]),
    in_reasoning=st.booleans(),
    cuts=st.lists(st.floats(0, 1), max_size=12),
)
def test_portions_make_no_difference(
    fragments: list[str],
    markers: Markers,
    stop: tuple[str, ...],
    in_reasoning: bool,
    cuts: list[float],
) -> None:
    text = "".join(fragments)
    asked: dict[str, Any] = {"stop": stop, "in_reasoning": in_reasoning and bool(markers.think)}
    whole = split(text, markers, **asked)
    ends = sorted({0, len(text), *(int(cut * len(text)) for cut in cuts)})
    assert (
        split([text[a:b] for a, b in zip(ends, ends[1:], strict=False)], markers, **asked) == whole
    )
    assert split(list(text), markers, **asked) == whole
    if not stop:
        given = "".join(one.raw if isinstance(one, ToolCalls) else one.text for one in whole)
        left = text
        for marker in markers.think or ():
            given, left = given.replace(marker, ""), left.replace(marker, "")
        assert given.replace("\n", "") == left.replace("\n", ""), "nothing else is dropped"
