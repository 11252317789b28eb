"""The markers of a tokenizer, and whether a prompt leaves a block of reasoning open."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_suite.core.answer.markers import Markers, begins_in_reasoning, markers_of
from dflash_suite.core.decode.chat import Chat, render_chat
from tests.kit.marked_tokenizer import JSON_CALLS, THINK, XML_CALLS, marked_tokenizer

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"
CALL = ("<tool_call>", "</tool_call>")


def test_the_markers_are_those_that_mlx_lm_infers(tmp_path: Path) -> None:
    made = {}
    for name, template, added in (
        ("neither", TURNS, ()),
        ("think", TURNS, THINK),
        ("both", JSON_CALLS + TURNS, THINK),
        ("xml", XML_CALLS + TURNS, ()),
    ):
        (tmp_path / name).mkdir()
        made[name] = markers_of(marked_tokenizer(tmp_path / name, template, added))
    assert made["neither"] == Markers(None, None, None)
    assert made["think"] == Markers(THINK, None, None)
    assert (made["both"].think, made["both"].call) == (THINK, CALL)
    assert (made["xml"].think, made["xml"].call) == (None, CALL)
    body = '{"name": "now", "arguments": {}}'
    parse = made["both"].parse
    assert parse is not None and parse(body, None) == {"name": "now", "arguments": {}}


@pytest.mark.parametrize(
    ("tail", "content", "is_open"),
    [
        ("<think>\n", "x", True),
        ("<think>", "x", True),
        ("<think>\n\n</think>\n\n", "x", False),
        ("", "x", False),
        ("", "what does <think> mean?", False),
        ("", "<think>", False),
        ("<think>\n", "long " * 100, True),
    ],
)
def test_a_prompt_that_ends_in_an_open_block(
    tmp_path: Path, tail: str, content: str, is_open: bool
) -> None:
    tokenizer = marked_tokenizer(tmp_path, TURNS + tail.replace("\n", "{{ '\\n' }}"))
    ids = render_chat(tokenizer, Chat([{"role": "user", "content": content}]))
    assert tokenizer.decode(ids).endswith("[assistant]" + tail)
    assert begins_in_reasoning(tokenizer, ids, markers_of(tokenizer)) is is_open
    assert not begins_in_reasoning(tokenizer, ids, Markers())
