"""A prompt as ids: raw text as it stands, or a chat turn through the tokenizer's own template, and
how much the model is to reason first.

Templates name that in their own ways: `enable_thinking` (Qwen3, 3.5, 3.6), `reasoning_effort`
(Qwen3.8, gpt-oss) or `reasoning_strength` (Muse). A value goes to a variable that the template
really reads, or is refused; nothing is passed in the hope that it helps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import OptionError, PromptError

SWITCHES: dict[str, bool] = {"on": True, "off": False}
EFFORTS = ("low", "medium", "high", "xhigh")
REASONING_VALUES = (*SWITCHES, *EFFORTS)
SWITCH_VARIABLE = "enable_thinking"
EFFORT_VARIABLES = ("reasoning_effort", "reasoning_strength")
GENERATION_TAG = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag of transformers' own, which jinja2 alone cannot parse."""


def require_encodable(text: str, what: str) -> None:
    """PromptError for a text with lone surrogates, which no tokenizer takes: what is left of bytes
    that were not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise PromptError(f"{what} is not UTF-8 text ({exc.reason}); convert it first") from exc


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Raw text to ids, as mlx-lm encodes it: special-token strings are parsed, nothing trimmed.

    Raises PromptError for a text that is not UTF-8.
    """
    require_encodable(text, "the prompt")
    bos = tokenizer.bos_token
    ids: list[int] = tokenizer.encode(
        text, add_special_tokens=bos is None or not text.startswith(bos)
    )
    return ids


def render_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], reasoning: str | None = None
) -> list[int]:
    """Ids of the messages and the beginning of an answer, by mlx-lm's tokenizer wrapper.

    reasoning: None leaves the template's default; else one of REASONING_VALUES. Raises PromptError
    where there is no template, where it has no variable for the value, or where it raises itself.
    """
    from jinja2.exceptions import TemplateError

    if not tokenizer.has_chat_template:
        raise PromptError("this tokenizer has no chat template; give the prompt with --raw")
    for message in messages:
        if isinstance(content := message.get("content"), str):
            require_encodable(content, f"the {message.get('role', '')} message")
    if isinstance(template := getattr(tokenizer, "chat_template", None), str):
        parse_template(template)
    arguments = {} if reasoning is None else reasoning_arguments(tokenizer, reasoning)
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, **arguments
        )
    except (TemplateError, TypeError, ValueError) as exc:
        given = "".join(f", {name}={value!r}" for name, value in arguments.items())
        raise PromptError(
            f"the tokenizer's chat template refuses this chat ({len(messages)} messages{given}): "
            f"{exc}"
        ) from exc
    return ids


def reasoning_arguments(tokenizer: Any, value: str) -> dict[str, bool | str]:
    """What the template is given for a `--reasoning` value.

    Raises OptionError for a value that no template knows, PromptError where this one has no
    variable for it.
    """
    value = value.strip().lower()
    if value not in REASONING_VALUES:
        raise OptionError(
            f"invalid 'reasoning' value '{value}' (expected {'|'.join(REASONING_VALUES)})"
        )
    known = template_variables(tokenizer)
    efforts = [name for name in EFFORT_VARIABLES if name in known]
    can_switch = SWITCH_VARIABLE in known
    if value in SWITCHES and can_switch:
        return {SWITCH_VARIABLE: SWITCHES[value]}
    if value in EFFORTS and efforts:
        # An effort means that the model reasons, whatever the template's default is.
        switch: dict[str, bool | str] = {SWITCH_VARIABLE: True} if can_switch else {}
        return switch | {efforts[0]: value}
    offers = [
        *([f"{SWITCH_VARIABLE} ({'|'.join(SWITCHES)})"] if can_switch else []),
        *(f"{name} ({'|'.join(EFFORTS)})" for name in efforts),
    ]
    raise PromptError(
        f"--reasoning {value} cannot be told to this model: its chat template has "
        f"{' and '.join(offers) or 'no variable for reasoning'}; leave --reasoning out"
        + (" or give one of these values" if offers else "")
    )


def template_variables(tokenizer: Any) -> frozenset[str]:
    """Names that the template takes from its caller; none where it is not a jinja template."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str):
        return frozenset()
    from jinja2 import meta

    return frozenset(meta.find_undeclared_variables(parse_template(template)))


def parse_template(template: str) -> Any:
    """The syntax tree of a chat template; PromptError where it is not a jinja template."""
    from jinja2 import Environment, TemplateSyntaxError

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return environment.parse(GENERATION_TAG.sub("", template))
    except TemplateSyntaxError as exc:
        raise PromptError(
            f"the tokenizer's chat template is not a jinja template: {exc}; fetch it again, or use "
            "--raw"
        ) from exc
