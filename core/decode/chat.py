"""A prompt as ids: raw text as it stands, or a chat turn through the tokenizer's own template, and
how much the model is to reason first.

Templates name that in their own ways: `enable_thinking` (Qwen3, 3.5, 3.6), `reasoning_effort`
(Qwen3.8, gpt-oss) or `reasoning_strength` (Muse). A value goes to a variable that the template
really reads, or is refused; nothing is passed in the hope that it helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import OptionError, PromptError
from .control_tokens import encode_marked, mark_messages, special_tokens
from .messages import plain_messages
from .template_bounds import require_bounded, template_tree

SWITCHES: dict[str, bool] = {"on": True, "off": False}
EFFORTS = ("low", "medium", "high", "xhigh")
REASONING_VALUES = (*SWITCHES, *EFFORTS)
SWITCH_VARIABLE = "enable_thinking"
EFFORT_VARIABLES = ("reasoning_effort", "reasoning_strength")


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


@dataclass(frozen=True)
class Chat:
    """A chat to be answered.

    tools: descriptions of functions, as OpenAI's interface takes them; reasoning: None leaves it to
    the template, else one of REASONING_VALUES; begins_answer: whether an answer's opening follows.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    reasoning: str | None = None
    begins_answer: bool = True


def render_chat(tokenizer: Any, chat: Chat) -> list[int]:
    """Ids of the messages and the beginning of an answer, by the tokenizer's own template.

    Nothing but what was asked for is passed to it, so that its own defaults hold. Raises
    PromptError where there is no template, where it has no variable for what is asked, or where it
    raises itself.
    """
    messages, arguments = _prepare(tokenizer, chat)
    # mlx-lm's wrapper would switch thinking on where the caller leaves it to the template.
    has_own = getattr(tokenizer, "_chat_template", None) is None
    inner = getattr(tokenizer, "_tokenizer", tokenizer) if has_own else tokenizer
    return _apply(inner, messages, arguments, chat.begins_answer)


def differs_from_mlx_lm(tokenizer: Any, chat: Chat) -> bool:
    """Whether mlx-lm, which sets `enable_thinking` itself, would render other ids of this chat."""
    messages, arguments = _prepare(tokenizer, chat)
    return _apply(tokenizer, messages, arguments) != render_chat(tokenizer, chat)


def _prepare(tokenizer: Any, chat: Chat) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, what else the template is given)."""
    if not tokenizer.has_chat_template:
        raise PromptError("this tokenizer has no chat template; give the prompt with --raw")
    messages = plain_messages(chat.messages)
    for message in messages:
        require_encodable(message["content"], f"the {message['role']} message")
    arguments: dict[str, Any] = {}
    if chat.reasoning is not None:
        arguments |= reasoning_arguments(tokenizer, chat.reasoning)
    known = template_variables(tokenizer)
    if chat.tools:
        if "tools" not in known:
            raise PromptError(
                "the tokenizer's chat template has no variable for tools; leave tools out, or take "
                "a model that was trained with them"
            )
        arguments["tools"] = [dict(tool) for tool in chat.tools]
    return messages, arguments


def _apply(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    arguments: Mapping[str, Any],
    begins_answer: bool = True,
) -> list[int]:
    try:
        ids: list[int] = _rendered(tokenizer, messages, arguments, begins_answer)
    except PromptError:
        raise
    except Exception as exc:  # a template raises of every kind
        given = "".join(f", {name}={value!r}" for name, value in arguments.items())
        raise PromptError(
            f"the tokenizer's chat template refuses this chat ({len(messages)} messages{given}): "
            f"{str(exc) or type(exc).__name__}"
        ) from exc
    return ids


def _rendered(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    arguments: Mapping[str, Any],
    begins_answer: bool,
) -> list[int]:
    """Ids of the rendered chat, in which special tokens of users and tools are text."""
    given = {"add_generation_prompt": begins_answer, **arguments}
    template = _template_for(tokenizer, bool(arguments.get("tools")))
    if template is not None:
        known = getattr(tokenizer, "special_tokens_map", {})
        require_bounded(template, {**known, **given, "messages": messages})
    specials = special_tokens(tokenizer)
    marked = mark_messages(messages, specials)
    if marked is None:
        ids: list[int] = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=False, **given
        )
        return ids
    text = tokenizer.apply_chat_template(marked, tokenize=False, **given)
    return encode_marked(text, specials, tokenizer.encode)


def _template_for(tokenizer: Any, has_tools: bool) -> str | None:
    """The template's text; None where it is not one of jinja's."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = (template.get("tool_use") if has_tools else None) or template.get("default")
    return template if isinstance(template, str) else None


def parse_reasoning(text: str) -> str:
    """Trimmed and lower-cased; OptionError for a value that no template knows."""
    value = text.strip().lower()
    if value not in REASONING_VALUES:
        raise OptionError(
            f"invalid 'reasoning' value '{value}' (expected {'|'.join(REASONING_VALUES)})"
        )
    return value


def reasoning_arguments(tokenizer: Any, value: str) -> dict[str, bool | str]:
    """What the template is given for a `--reasoning` value.

    Raises OptionError for a value that no template knows, PromptError where this one has no
    variable for it.
    """
    value = parse_reasoning(value)
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
    texts = list(template.values()) if isinstance(template, dict) else [template]
    return frozenset().union(*(_variables(text) for text in texts if isinstance(text, str)))


@lru_cache(maxsize=16)
def _variables(template: str) -> frozenset[str]:
    """Of one template, which every prompt of a chat asks for."""
    from jinja2 import meta

    return frozenset(meta.find_undeclared_variables(parse_template(template)))


def parse_template(template: str) -> Any:
    """The syntax tree of a chat template; PromptError where it is not a jinja template."""
    from jinja2 import TemplateSyntaxError

    try:
        return template_tree(template)
    except TemplateSyntaxError as exc:
        raise PromptError(
            f"the tokenizer's chat template is not a jinja template: {exc}; fetch it again, or use "
            "--raw"
        ) from exc


def template_reads(tokenizer: Any, field: str) -> bool:
    """Whether the template looks at this field of a message."""
    template = getattr(tokenizer, "chat_template", None)
    texts = list(template.values()) if isinstance(template, dict) else [template]
    return any(field in _fields(text) for text in texts if isinstance(text, str))


@lru_cache(maxsize=16)
def _fields(template: str) -> frozenset[str]:
    """Every name behind a dot and every text between quotes in a template."""
    from jinja2 import nodes

    tree = parse_template(template)
    quoted = {one.value for one in tree.find_all(nodes.Const) if isinstance(one.value, str)}
    return frozenset(quoted | {one.attr for one in tree.find_all(nodes.Getattr)})
