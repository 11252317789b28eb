"""Messages in OpenAI's forms reach the template as transformers itself would render their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer
from transformers import AutoTokenizer

from dflash_suite.core.decode.chat import Chat, differs_from_mlx_lm, render_chat
from dflash_suite.core.decode.messages import plain_messages
from dflash_suite.core.errors import PromptError
from tests.kit.marked_tokenizer import marked_tokenizer
from tests.kit.tiny import save_byte_tokenizer

QWEN = (
    "{%- for m in messages %}"
    "{%- if m.content is string %}{%- set content = m.content %}"
    "{%- else %}{%- set content = '' %}{%- endif %}"
    "{{- '<' + m.role + '>' + content }}"
    "{%- for call in m.tool_calls or [] %}{%- set f = call.function or call %}"
    "{{- '[' + f.name }}{%- for k, v in f.arguments|items %}{{- ' ' + k + '=' + (v|string) }}"
    "{%- endfor %}{{- ']' }}{%- endfor %}"
    "{%- endfor %}{%- if tools %}{{- tools|tojson }}{%- endif %}"
    "{%- if enable_thinking is defined and enable_thinking %}{{- '<think>' }}{%- endif %}"
)
LLAMA = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
ADD: dict[str, Any] = {"name": "add", "arguments": {"a": 1, "b": 2}}
CALL = {"type": "function", "function": {**ADD, "arguments": '{"a": 1, "b": 2}'}}
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
ASKED = {"role": "user", "content": "1+2?"}
GIVEN: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "parts": ([{"role": "user", "content": PARTS}], [{"role": "user", "content": "one two"}]),
    "a call whose content is null": (
        [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [ASKED, {"role": "assistant", "content": "", "tool_calls": [{"function": ADD}]}],
    ),
    "an assistant without content": (
        [ASKED, {"role": "assistant"}, {"role": "tool", "content": None}],
        [ASKED, {"role": "assistant", "content": ""}, {"role": "tool", "content": ""}],
    ),
}


def tokenizers(directory: Path, template: str) -> tuple[Any, Any]:
    """(mlx-lm's wrapper, transformers' own)."""
    save_byte_tokenizer(directory)
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    load: Any = load_tokenizer
    auto: Any = AutoTokenizer
    return load(directory), auto.from_pretrained(directory)


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False, **more
    )
    return ids


@pytest.mark.parametrize("template", [QWEN, LLAMA], ids=["qwen", "llama"])
@pytest.mark.parametrize("case", GIVEN)
def test_as_transformers_renders_their_text(tmp_path: Path, template: str, case: str) -> None:
    given, plain = GIVEN[case]
    wrapper, own = tokenizers(tmp_path, template)
    assert render_chat(wrapper, Chat(given)) == rendered(own, plain)


def test_tools_reach_the_template_or_are_refused(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    messages = [{"role": "user", "content": "x"}]
    (tmp_path / "qwen").mkdir()
    (tmp_path / "llama").mkdir()
    wrapper, own = tokenizers(tmp_path / "qwen", QWEN)
    assert render_chat(wrapper, Chat(messages, tools)) == rendered(own, messages, tools=tools)
    wrapper, _ = tokenizers(tmp_path / "llama", LLAMA)
    with pytest.raises(PromptError, match="no variable for tools"):
        render_chat(wrapper, Chat(messages, tools))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": None}, "has no content"),
        ({"role": "system"}, "has no content"),
        ({"role": "user", "content": 3}, "content is 3"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "'image_url'"),
        ({"role": "user", "content": ["text"]}, "part 'text'"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "has a part"),
        ({"role": 3, "content": "x"}, "expected an object with a role"),
        ({"role": "assistant", "tool_calls": {}}, "expected a list of objects"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "a function with a name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "no JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "expected a JSON object",
        ),
    ],
)
def test_what_is_no_text_is_refused_by_name(message: dict[str, Any], words: str) -> None:
    with pytest.raises(PromptError) as caught:
        plain_messages([{"role": "user", "content": "x"}, message])
    assert words in str(caught.value) and "message 2" in str(caught.value)
    assert json.dumps(message)  # each could stand in a file of requests


def test_thinking_is_left_to_the_template(tmp_path: Path) -> None:
    """mlx-lm passes enable_thinking where the vocabulary has <think>; nobody asked for it."""
    wrapper, auto = marked_tokenizer(tmp_path, QWEN), AutoTokenizer
    messages = [{"role": "user", "content": "x"}]
    own: Any = auto.from_pretrained(tmp_path)
    assert render_chat(wrapper, Chat(messages)) == rendered(own, messages)
    assert rendered(wrapper, messages) != rendered(own, messages)
    assert differs_from_mlx_lm(wrapper, Chat(messages))
    on = Chat(messages, reasoning="on")
    assert render_chat(wrapper, on) == rendered(own, messages, enable_thinking=True)
    assert not differs_from_mlx_lm(wrapper, on)
