"""A request's answer in typed pieces as they come: the one way for every front end.

The decode loop is asked for no stop strings here: they are looked for in the answer's text alone,
so that a thought or a call that holds one does not end the answer.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from ..core.answer.calls import ToolCall
from ..core.answer.split import AnswerText, Piece, Reasoning, Splitter, ToolCalls, splitter_for
from ..core.decode.detokenize import add_id
from ..core.decode.emit import prime
from ..core.stats import Chunk, Finished, PrefillProgress
from .engine import Answer, Engine
from .request import Request

SplitReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass
class SplitAnswer:
    """An answer under way: iterate it once for the progress of its prompt, then its pieces.

    request: as it was asked, with its stop strings; answer: what decodes it, whose `completion()`
    has the figures; pieces: those so far.
    """

    request: Request
    answer: Answer
    splitter: Splitter
    pieces: list[Piece] = field(default_factory=list)

    def __iter__(self) -> Generator[PrefillProgress | Piece, None, None]:
        """Everything from the first event to the last. Leaving between two of them, and then
        `cut`, ends the answer there."""
        with closing(iter(self.answer)) as events:
            for event in events:
                if isinstance(event, PrefillProgress):
                    yield event
                elif isinstance(event, Chunk):
                    yield from self._kept(self.splitter.feed(event.text))
                elif isinstance(event, Finished):
                    yield from self._kept(self.splitter.finish())
                if self.splitter.stopped is not None:
                    return

    def cut(self) -> list[Piece]:
        """End an answer that was left, and give the pieces that were held back."""
        left = self.answer.flush()
        return self._kept([*self.splitter.feed(left), *self.splitter.finish()])

    @property
    def text(self) -> str:
        """The answer's own text so far."""
        return "".join(one.text for one in self.pieces if isinstance(one, AnswerText))

    @property
    def reasoning(self) -> str:
        """What the model has thought so far."""
        return "".join(one.text for one in self.pieces if isinstance(one, Reasoning))

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of tools so far."""
        return [call for one in self.pieces if isinstance(one, ToolCalls) for call in one.calls]

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self.splitter.stopped

    @property
    def reason(self) -> SplitReason | None:
        """Why the answer ended; None while it has not. A call is the reason where the model itself
        ended its answer behind one."""
        decoded = self.answer.generation.emitter.reason
        if self.stop_string is not None:
            return "stop"
        return "tool_calls" if decoded == "stop" and self.calls else decoded

    def count_tokens(self) -> int:
        """Tokens of the answer, up to the one that completed its stop string, if one did: the last
        round may have decoded some behind that."""
        generation, engine = self.answer.generation, self.answer.engine
        ids = generation.emitter.token_ids
        if self.stop_string is None:
            return len(ids)
        detokenizer = engine.tokenizer.detokenizer
        prime(detokenizer, generation.prompt_ids)
        splitter = _splitter(engine, generation.prompt_ids, self.request)
        for count, token in enumerate(ids, start=1):
            if token not in engine.target.config.eos_ids:
                add_id(detokenizer, token)
                splitter.feed(detokenizer.last_segment)
            if splitter.stopped is not None:
                return count
        return len(ids)

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        self.pieces += pieces
        return pieces


def start_split(engine: Engine, request: Request) -> SplitAnswer:
    """Begin a request, with no more tokens than the target has positions and memory for; the
    answer's `notes` say where these are fewer than asked for. Raises as Engine.start."""
    request.options(engine.prefill_step_size)  # stop strings that no answer could use
    answer = engine.start(replace(request, stop=()), bounded=True)
    return SplitAnswer(request, answer, _splitter(engine, answer.generation.prompt_ids, request))


def _splitter(engine: Engine, prompt_ids: list[int], request: Request) -> Splitter:
    return splitter_for(engine.tokenizer, prompt_ids, request.tools, request.stop)
