"""An engine whose answers are written beforehand: real ids, a real emitter, no model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dflash_suite.core.block import NO_BLOCK
from dflash_suite.core.decode.emit import Emitter, prime
from dflash_suite.core.decode.positions import tokens_within
from dflash_suite.core.exact.promise import Promise
from dflash_suite.core.options import Speculation
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.stats import Chunk, Event, Finished, GenerationStats, PrefillProgress
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.request import Completion, Request
from dflash_suite.drafters.routes import Attempt, Route, choose_route
from tests.kit.marked_tokenizer import THINK, marked_tokenizer

TURNS = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A template that reads what the assistant thought."""


@dataclass
class ScriptedAnswer:
    """An answer of Engine.start, as far as a SplitAnswer looks at it."""

    engine: Any
    generation: Any
    route: Route
    notes: tuple[str, ...]
    events: Generator[Event, None, None]

    def __iter__(self) -> Generator[Event, None, None]:
        return self.events

    def flush(self) -> str:
        """What the emitter held back."""
        text: str = self.generation.emitter.flush()
        return text

    def completion(self) -> Completion:
        """The ids and the reason, without figures."""
        emitter = self.generation.emitter
        return Completion(
            text="",
            token_ids=emitter.token_ids,
            finish_reason=emitter.reason,
            route=self.route,
            stats=GenerationStats(prompt_tokens=len(self.generation.prompt_ids)),
            identity=None,
            block=NO_BLOCK,
            drafter_bits=None,
            sampling=SamplingOptions(),
            promise=Promise(),
        )


@dataclass
class ScriptedEngine:
    """Answers one text after another, `portion` tokens an event; `during` is called before each.

    positions: of its target, which has a token for each byte and marker; requests: those begun.
    """

    tokenizer: Any
    texts: list[str]
    positions: int | None = None
    portion: int = 3
    during: Callable[[int], None] = lambda number: None
    requests: list[Request] = field(default_factory=list)
    prefill_step_size: int = 2048

    def __post_init__(self) -> None:
        config = SimpleNamespace(max_positions=self.positions, eos_ids=frozenset({0}))
        self.target = SimpleNamespace(config=config, can_share_rows=True)

    encode = Engine.encode

    def route(self, speculation: Speculation) -> Route:
        """Plain, for want of drafters."""
        return choose_route(speculation, [Attempt(problem="none is here")])

    def start(self, request: Request, *, bounded: bool = False) -> ScriptedAnswer:
        """As Engine.start."""
        self.requests.append(request)
        ids = self.encode(request)  # type: ignore[misc]
        most, note = tokens_within(self.target, len(ids), request.max_tokens)
        request = replace(request, max_tokens=most)
        detokenizer = self.tokenizer.detokenizer
        prime(detokenizer, ids)
        emitter = Emitter(detokenizer, {0}, request.stop, request.max_tokens)
        generation = SimpleNamespace(prompt_ids=ids, emitter=emitter)
        answer = [*self.tokenizer.encode(self.texts.pop(0), add_special_tokens=False), 0]
        route = self.route(request.speculation)
        notes = (note,) if note else ()
        return ScriptedAnswer(self, generation, route, notes, self._events(emitter, ids, answer))

    def _events(
        self, emitter: Emitter, ids: Sequence[int], answer: Sequence[int]
    ) -> Generator[Event, None, None]:
        yield PrefillProgress(len(ids), len(ids))
        for number, at in enumerate(range(0, len(answer), self.portion)):
            self.during(number)
            count = emitter.take(answer[at : at + self.portion])
            yield Chunk(emitter.drain(), tuple(answer[at : at + count]))
            if emitter.reason is not None:
                yield Finished(emitter.reason)
                return


def scripted_engine(
    directory: Path, texts: Sequence[str], template: str = TURNS, **more: Any
) -> ScriptedEngine:
    """One over the tokenizer of bytes, `<think>` and `</think>`."""
    return ScriptedEngine(marked_tokenizer(directory, template, THINK), list(texts), **more)
