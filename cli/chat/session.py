"""What a chat is at: the conversation, and how its next answer is decoded. Nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...core.decode.chat import template_reads
from ...core.decode.conversation import REASONING, Conversation, Exchange
from ...core.errors import PromptError
from ...core.options import GenerateOptions, Speculation
from ...drafters.request import Completion, Request
from ...drafters.split_answer import SplitAnswer, start_split

if TYPE_CHECKING:
    from ...drafters.engine import Engine

PROBE = "x"
"""A question of one token, to see what a conversation leaves room for."""


@dataclass(frozen=True)
class ChatState:
    """All that a file keeps of a chat.

    reasoning: of `--reasoning`, None for the template's own default.
    """

    conversation: Conversation
    options: GenerateOptions
    speculation: Speculation
    reasoning: str | None = None


@dataclass
class ChatSession:
    """A chat over one engine. model: as it was asked for, None for the bundled one; last: what came
    of the last question, without the caches, which belong to the engine by then."""

    engine: Engine
    model: str | None
    state: ChatState
    last: Completion | None = None

    @property
    def positions(self) -> int | None:
        """Tokens that the target was made for; None where config.json does not say."""
        most: int | None = self.engine.target.config.max_positions
        return most

    def begin(self, question: str) -> SplitAnswer:
        """The answer to a question, which is no part of the conversation before `keep`.

        Raises PromptTooLong where the window is full, and as Engine.start.
        """
        return start_split(self.engine, self._request(self.state, question))

    def keep(self, question: str, turn: SplitAnswer) -> None:
        """Make the question and what was answered part of the conversation."""
        self.last = turn.answer.completion()
        exchange = Exchange(question, turn.text, turn.reasoning)
        self.state = replace(self.state, conversation=self.state.conversation.having(exchange))

    def change(self, state: ChatState) -> None:
        """Go on from another state.

        Raises PromptError where the template refuses it or its system prompt alone leaves no room
        for an answer, RouteUnavailable where its drafter is not there; nothing is changed then.
        """
        self.engine.route(state.speculation)
        self.count_tokens(state)
        alone = replace(state, conversation=replace(state.conversation, exchanges=()))
        tokens = self.count_tokens(alone)
        if self.positions is not None and tokens >= self.positions:
            raise PromptError(
                f"the system prompt takes {tokens:,} tokens, and the target has {self.positions:,} "
                "positions; take a shorter one"
            )
        self.state = state

    def count_tokens(self, state: ChatState | None = None, question: str = PROBE) -> int:
        """Tokens of the prompt that a question would be asked with."""
        return len(self.engine.encode(self._request(state or self.state, question)))

    def turns_to_drop(self, question: str = PROBE) -> int | None:
        """How many of the oldest turns have to go so that max_tokens fit behind the question, or
        one token at least; None where no number helps."""
        if self.positions is None:
            return None
        conversation = self.state.conversation
        for wanted in (self.state.options.max_tokens, 1):
            for count in range(1, len(conversation.exchanges) + 1):
                left = replace(self.state, conversation=conversation.without_oldest(count))
                if self.count_tokens(left, question) + wanted <= self.positions:
                    return count
        return None

    def _request(self, state: ChatState, question: str) -> Request:
        options = state.options
        with_reasoning = template_reads(self.engine.tokenizer, REASONING)
        return Request(
            messages=state.conversation.messages(with_reasoning=with_reasoning, question=question),
            reasoning=state.reasoning,
            max_tokens=options.max_tokens,
            sampling=options.sampling,
            stop=options.stop,
            speculation=state.speculation,
            block_size=options.block_size,
            draft_tokens=options.draft_tokens,
            gate=options.gate,
        )


def window_note(session: ChatSession, question: str = PROBE) -> str:
    """What to do where a conversation has filled the target's positions."""
    count = session.turns_to_drop(question)
    full = f"the window of {session.positions:,} tokens is full"
    if count is None:
        return f"{full}: /reset begins anew, and a shorter question or system prompt may fit"
    turns = "the oldest turn" if count == 1 else f"the {count} oldest turns"
    return f"{full}: /drop {count} leaves out {turns}, /reset all of them; then ask again"
