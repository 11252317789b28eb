"""Conversations as messages and back; what is none is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.decode.chat import template_reads
from dflash_suite.core.decode.conversation import Conversation, Exchange, read_conversation
from dflash_suite.core.errors import PromptError
from tests.kit.marked_tokenizer import marked_tokenizer

TALK = Conversation("terse", (Exchange("a?", "b", "hm"), Exchange("c?", "d")))
USER: dict[str, Any] = {"role": "user", "content": "a?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "b"}


def test_reasoning_is_a_field_of_its_own_where_it_is_read() -> None:
    system = {"role": "system", "content": "terse"}
    more = {"role": "user", "content": "e?"}
    last = [{"role": "user", "content": "c?"}, {"role": "assistant", "content": "d"}]
    thought = {**ANSWER, "reasoning_content": "hm"}
    read = TALK.messages(with_reasoning=True, question="e?")
    assert read == [system, USER, thought, *last, more]
    assert TALK.messages(with_reasoning=False) == [system, USER, ANSWER, *last]


def test_a_conversation_comes_back_from_its_messages() -> None:
    messages = TALK.messages(with_reasoning=True)
    assert read_conversation("terse", messages[1:]) == TALK
    assert read_conversation(None, []) == Conversation()


def test_steps_leave_the_old_conversation_as_it_was() -> None:
    assert TALK.having(Exchange("e?", "f")).exchanges[:2] == TALK.exchanges
    assert TALK.without_oldest(1) == Conversation("terse", TALK.exchanges[1:])
    assert len(TALK.exchanges) == 2


@pytest.mark.parametrize(
    ("system", "messages", "words"),
    [
        (3, [], "system is 3, expected a text or null"),
        ("\ud800", [], "system prompt is not UTF-8"),
        (None, None, "messages is None, expected a list"),
        (None, {"role": "user"}, "expected a list"),
        (None, ["a"], "message 1 is 'a', expected an object"),
        (None, [ANSWER], "message 1 has the role 'assistant', which is an answer to nothing"),
        (None, [USER, ANSWER, ANSWER], "message 3 has the role 'assistant', which is an answer to"),
        (None, [USER], "message 1 (user) has no answer"),
        (None, [USER, USER], "message 2 has the role 'user', which is out of place"),
        (None, [{"role": "system", "content": "x"}, USER], "message 1 has the role 'system'"),
        (None, [{"role": "tool", "content": "x"}], "message 1 has the role 'tool'"),
        (None, [{"content": "x"}], "message 1 has the role None"),
        (None, [{"role": ["user"], "content": "x"}], "message 1 has the role ['user']"),
        (None, [{"role": "user"}, ANSWER], "message 1: content is None, expected a text"),
        (None, [{"role": "user", "content": ["x"]}], "message 1: content is ['x'], expected"),
        (None, [{"role": "user", "content": "\udcff"}], "message 1 is not UTF-8 text"),
        (None, [USER, {**ANSWER, "tool_calls": []}], "message 2 (assistant) has the field 'tool_"),
        (None, [USER, {**ANSWER, "reasoning_content": 1}], "message 2: reasoning_content is 1"),
        (None, [{**USER, "reasoning_content": "x"}], "message 1 (user) has the field 'reasoning"),
    ],
)
def test_what_is_no_conversation(system: object, messages: object, words: str) -> None:
    with pytest.raises(PromptError) as caught:
        read_conversation(system, messages)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("template", "is_read"),
    [
        ("{{ messages[0].reasoning_content }}", True),
        ("{{ messages[0]['reasoning_content'] }}", True),
        ("{% if 'reasoning_content' in messages[0] %}x{% endif %}", True),
        ("{{ messages[0].content }}", False),
        ("{# reasoning_content #}{{ messages[0].content }}", False),
        (None, False),
    ],
)
def test_whether_a_template_reads_a_field(
    tmp_path: Path, template: str | None, is_read: bool
) -> None:
    assert template_reads(marked_tokenizer(tmp_path, template), "reasoning_content") is is_read
