"""The marks by which a model's text says that it reasons or calls a tool.

They are matched as text, since a mark may be several tokens, and is not always a special one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ToolParser = Callable[[str, Any], Any]
"""mlx-lm's: (the text between the markers, the request's tools) -> a dict, or a list of dicts."""
Tools = Sequence[Mapping[str, Any]]
"""Descriptions of functions, as OpenAI's interface takes them."""
TAIL_TOKENS = 64
"""Of a prompt, enough for an opening marker and the newlines after it."""


@dataclass(frozen=True)
class Markers:
    """Opening and closing markers, None where the model has none; `parse` reads a call's inside.

    A call's closing marker may be empty: such a call goes on to the end of the answer.
    """

    think: tuple[str, str] | None = None
    call: tuple[str, str] | None = None
    parse: ToolParser | None = None


def markers_of(tokenizer: Any) -> Markers:
    """The markers that mlx-lm's TokenizerWrapper has inferred from vocabulary and template."""
    think = call = parse = None
    if getattr(tokenizer, "has_thinking", False):
        think = (tokenizer.think_start, tokenizer.think_end)
    if getattr(tokenizer, "has_tool_calling", False) and tokenizer.tool_parser is not None:
        call = (tokenizer.tool_call_start, tokenizer.tool_call_end)
        parse = tokenizer.tool_parser
    return Markers(think, call, parse)


def begins_in_reasoning(tokenizer: Any, prompt_ids: Sequence[int], markers: Markers) -> bool:
    """Whether the answer to this prompt begins inside reasoning: the prompt ends in the opening
    marker, and nothing but white space behind it.

    A marker further ahead is somebody's text about it, or a block that is closed.
    """
    if markers.think is None:
        return False
    tail: str = tokenizer.decode(list(prompt_ids[-TAIL_TOKENS:]))
    return tail.rstrip().endswith(markers.think[0])
