"""`--reasoning` goes to a variable that the template really has, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from dflash_suite.core.decode.chat import (
    Chat,
    reasoning_arguments,
    render_chat,
    template_variables,
)
from dflash_suite.core.errors import OptionError, PromptError
from tests.kit.tiny import save_byte_tokenizer

pytestmark = pytest.mark.quick

TURN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TEMPLATES = {
    "none": TURN,
    "qwen3": TURN
    + "{% if enable_thinking is defined and enable_thinking is false %}<no>{% endif %}",
    "small 3.5": TURN
    + "{% if enable_thinking is defined and enable_thinking is true %}<yes>"
    "{% else %}<no>{% endif %}",
    "qwen3.8": TURN
    + "{% if enable_thinking is not defined or enable_thinking %}"
    "{% set effort = reasoning_effort|default('xhigh') %}"
    "{% if effort not in ['xhigh', 'medium', 'low'] %}{{ raise_exception('bad effort') }}"
    "{% endif %}"
    "<{{ effort }}>{% else %}<no>{% endif %}",
    "gpt-oss": TURN
    + "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "<{{ reasoning_effort }}>",
    "muse": TURN + "{% generation %}<{{ reasoning_strength|default('high') }}>{% endgeneration %}",
    "in a comment": TURN + "{# reasoning_effort, enable_thinking #}{% set enable_thinking = 1 %}",
}  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}]


def tokenizer(directory: Path, name: str) -> Any:
    save_byte_tokenizer(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATES[name], encoding="utf-8")
    load: Any = load_tokenizer
    return load(directory)


@pytest.mark.parametrize(
    ("name", "value", "ending"),
    [
        ("none", None, "hi"),
        ("qwen3", "off", "hi<no>"),
        ("qwen3", "on", "hi"),
        ("qwen3", " OFF ", "hi<no>"),
        ("small 3.5", "on", "hi<yes>"),
        ("small 3.5", "off", "hi<no>"),
        ("qwen3.8", "low", "hi<low>"),
        ("qwen3.8", "xhigh", "hi<xhigh>"),
        ("qwen3.8", "off", "hi<no>"),
        ("qwen3.8", "on", "hi<xhigh>"),
        ("gpt-oss", None, "hi<medium>"),
        ("gpt-oss", "high", "hi<high>"),
        ("muse", "low", "hi<low>"),
    ],
)
def test_the_value_reaches_the_template(
    tmp_path: Path, name: str, value: str | None, ending: str
) -> None:
    wrapper = tokenizer(tmp_path, name)
    ids = render_chat(wrapper, Chat(MESSAGES, reasoning=value))
    assert wrapper.decode(ids).endswith(f"[user]{ending}")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("none", "on", "no variable for reasoning"),
        ("none", "low", "no variable for reasoning"),
        ("qwen3", "low", "enable_thinking (on|off)"),
        ("gpt-oss", "off", "reasoning_effort (low|medium|high|xhigh)"),
        ("muse", "on", "reasoning_strength"),
        ("in a comment", "low", "no variable for reasoning"),
        ("qwen3.8", "high", "bad effort"),
    ],
)
def test_a_template_without_it_refuses_by_name(
    tmp_path: Path, name: str, value: str, words: str
) -> None:
    with pytest.raises(PromptError) as caught:
        render_chat(tokenizer(tmp_path, name), Chat(MESSAGES, reasoning=value))
    assert words in str(caught.value) and value in str(caught.value)


def test_a_value_that_no_template_knows_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'banana' \(expected on\|off\|low"):
        reasoning_arguments(tokenizer(tmp_path, "gpt-oss"), "banana")


def test_variables_are_those_taken_from_the_caller(tmp_path: Path) -> None:
    assert template_variables(tokenizer(tmp_path, "muse")) == {"messages", "reasoning_strength"}
    assert "reasoning_effort" in template_variables(tokenizer(tmp_path, "gpt-oss"))
    assert "enable_thinking" not in template_variables(tokenizer(tmp_path, "in a comment"))


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    load: Any = load_tokenizer
    with pytest.raises(PromptError, match="no chat template"):
        render_chat(load(tmp_path), Chat(MESSAGES))


def test_a_broken_template_is_a_message(tmp_path: Path) -> None:
    wrapper = tokenizer(tmp_path, "none")
    (tmp_path / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
    load: Any = load_tokenizer
    broken = load(tmp_path)
    for value in ("on", None):
        with pytest.raises(PromptError, match="chat template"):
            render_chat(broken, Chat(MESSAGES, reasoning=value))
    assert wrapper.decode(render_chat(wrapper, Chat(MESSAGES))).endswith("hi")
