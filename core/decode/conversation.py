"""A conversation: a system prompt, and questions with their answers, as messages of a chat.

It never changes; every step gives a new one, so that whoever fails at a step still has the old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PromptError
from ..json_values import shown
from .chat import require_encodable
from .messages import Message

REASONING = "reasoning_content"
"""The field of an assistant's message that holds what it thought, where a template reads it."""
FIELDS = {
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", REASONING}),
}


@dataclass(frozen=True)
class Exchange:
    """A question, its answer, and what the model thought in between."""

    question: str
    answer: str
    reasoning: str = ""

    def messages(self, with_reasoning: bool) -> list[Message]:
        """The user's message and the assistant's."""
        answer: Message = {"role": "assistant", "content": self.answer}
        if with_reasoning and self.reasoning:
            answer[REASONING] = self.reasoning
        return [{"role": "user", "content": self.question}, answer]


@dataclass(frozen=True)
class Conversation:
    """What a model is told before the next question."""

    system: str | None = None
    exchanges: tuple[Exchange, ...] = ()

    def messages(self, *, with_reasoning: bool, question: str | None = None) -> list[Message]:
        """All messages in order, a further question last. with_reasoning: for a template that
        reads it; elsewhere thoughts are left out, and are never part of a content."""
        made: list[Message] = []
        if self.system is not None:
            made.append({"role": "system", "content": self.system})
        for exchange in self.exchanges:
            made += exchange.messages(with_reasoning)
        return made if question is None else [*made, {"role": "user", "content": question}]

    def having(self, exchange: Exchange) -> Conversation:
        """The conversation that goes on with this exchange."""
        return replace(self, exchanges=(*self.exchanges, exchange))

    def without_oldest(self, count: int) -> Conversation:
        """The conversation without its first exchanges; the system prompt stays."""
        return replace(self, exchanges=self.exchanges[count:])


def read_conversation(system: object, messages: object) -> Conversation:
    """The conversation that `Conversation.messages` would give as these messages, with its system
    prompt apart.

    Raises PromptError, which names the message, for what is no such conversation.
    """
    if system is not None and not isinstance(system, str):
        raise PromptError(f"system is {shown(system)}, expected a text or null")
    if system is not None:
        require_encodable(system, "the system prompt")
    if not isinstance(messages, list):
        raise PromptError(f"messages is {shown(messages)}, expected a list")
    texts = [_read(number, message) for number, message in enumerate(messages, start=1)]
    if len(texts) % 2:
        raise PromptError(f"message {len(texts)} (user) has no answer; take it out")
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return Conversation(system, tuple(Exchange(ask[0], *answer) for ask, answer in pairs))


def _read(number: int, message: object) -> Sequence[str]:
    """(content, reasoning) of a message whose place asks for one of the two roles."""
    role = "user" if number % 2 else "assistant"
    where = f"message {number}"
    if not isinstance(message, Mapping):
        raise PromptError(f"{where} is {shown(message)}, expected an object")
    if message.get("role") != role:
        why = "an answer to nothing" if message.get("role") == "assistant" else "out of place"
        found = shown(message.get("role"))
        raise PromptError(
            f"{where} has the role {found}, which is {why}; expected '{role}': a question and its "
            "answer by turns"
        )
    unknown = sorted(map(str, set(message) - FIELDS[role]))
    if unknown:
        raise PromptError(f"{where} ({role}) has the field '{unknown[0]}', which a chat has not")
    return _text(where, message, "content"), _text(where, message, REASONING, "")


def _text(where: str, message: Mapping[Any, Any], field: str, default: str | None = None) -> str:
    value = message.get(field, default)
    if not isinstance(value, str):
        raise PromptError(f"{where}: {field} is {shown(value)}, expected a text")
    require_encodable(value, where)
    return value
