"""Where a later turn of a chat parts from this prompt: found by rendering such turns.

Templates render a chat otherwise once it goes on: an answer's opening is left out, reasoning of
earlier turns is dropped. What the prompts have in common is what a later one can begin with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..cache.resume import common_prefix
from ..errors import PromptError
from .chat import Chat, render_chat

OTHER_TEXT = "\N{PILCROW SIGN}"
"""Of turns that nobody wrote: a text that hardly any message begins with."""
USER_TURNS = 3
"""Earlier messages of the user that are marked too, for a chat that is taken up again there."""
LEADING = ("system", "developer")
Message = Mapping[str, Any]


def stable_positions(tokenizer: Any, chat: Chat, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """Positions in a chat's prompt that later prompts will share, in order.

    The end of the system prompt and the tools, of the user's last messages, and where the answer's
    opening begins.
    """
    found = set()
    for other in _later(chat):
        try:
            ids = render_chat(tokenizer, other)
        except PromptError:
            continue  # a template that refuses such a chat will not meet it
        found.add(common_prefix(ids, prompt_ids))
    return tuple(sorted(found - {0}))


def _later(chat: Chat) -> Iterator[Chat]:
    """Chats that share a beginning with this one."""
    messages = list(chat.messages)
    leading = 0
    while leading < len(messages) and messages[leading].get("role") in LEADING:
        leading += 1
    user = {"role": "user", "content": OTHER_TEXT}
    answer = {"role": "assistant", "content": OTHER_TEXT}
    yield replace(chat, messages=[*messages[:leading], user])
    users = [index for index, one in enumerate(messages) if one.get("role") == "user"]
    for index in users[-USER_TURNS - 1 :]:
        if index < len(messages) - 1:
            yield replace(chat, messages=messages[: index + 1], begins_answer=False)
    yield replace(chat, begins_answer=False)
    yield replace(chat, messages=[*messages, answer, user])
