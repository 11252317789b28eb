"""Requests one after another over one loaded target and its drafters.

No request affects the next, but for what the gate has learned of the device, and the rows that a
later request shares with the one before it. One request at a time; not for several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.cache.resume import Resume, best_mark
from ..core.decode.chat import render_chat
from ..core.decode.drafter import Drafter, resolve_blocks
from ..core.decode.gate import RoutePicker
from ..core.decode.loop import Generation, make_picker
from ..core.errors import PromptError
from ..core.exact.promise import Promise
from ..core.options import GenerateOptions, Speculation
from ..core.sampling_options import SamplingOptions
from ..core.stats import Chunk, FinishReason, GenerationStats
from ..core.target.target import Target
from .pair import Pair, encode_text, load_pair
from .routes import Attempt, Route, choose_route


@dataclass(frozen=True)
class Request:
    """One text to answer: `prompt` (raw text or ids) or `messages` (a chat), and how.

    reuse: share the cached rows of the request before, where they begin alike.
    """

    prompt: str | Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int = GenerateOptions.max_tokens
    sampling: SamplingOptions = SamplingOptions()
    stop: tuple[str, ...] = ()
    speculation: Speculation = "auto"
    block_size: int | None = None
    draft_tokens: int | None = None
    gate: bool = True
    reuse: bool = True

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise PromptError("a request has either a prompt or messages")

    def options(self, prefill_step_size: int) -> GenerateOptions:
        """As the decode loop takes them."""
        return GenerateOptions(
            max_tokens=self.max_tokens,
            block_size=self.block_size,
            draft_tokens=self.draft_tokens,
            gate=self.gate,
            prefill_step_size=prefill_step_size,
            stop=self.stop,
            sampling=self.sampling,
        )


@dataclass(frozen=True)
class Completion:
    """A finished request; identity: what may be said of its ids, if anything."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    route: Route
    stats: GenerationStats
    identity: str | None = None


@dataclass
class Engine:
    """A target, its tokenizer and its drafters, in the order in which `auto` tries them.

    problems: why a drafter that was looked for is not there, by kind (`dflash`, `mtp`).
    """

    target: Target
    tokenizer: Any
    drafters: Sequence[Drafter] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    prefill_step_size: int = GenerateOptions.prefill_step_size
    promise: Promise = Promise()
    clock: Callable[[], float] = time.perf_counter
    _pickers: dict[tuple[tuple[str, int], ...], RoutePicker] = field(default_factory=dict)
    _last: Generation | None = None

    def start(self, request: Request) -> tuple[Generation, Route]:
        """Begin a request: iterate the generation for events. RouteUnavailable where an explicit
        `dflash` or `mtp` has no drafter; PromptError and OptionError as in `generate`."""
        route = self.route(request.speculation)
        options = request.options(self.prefill_step_size)
        ids = self.encode(request)
        chosen = [one for one in self.drafters if one.name in (route.route, route.reserve)]
        blocks = resolve_blocks(chosen, options, self.target.widest)
        key = tuple((name, block.effective) for name, block in blocks.items())
        if options.gated:
            picker = self._pickers.setdefault(key, make_picker(blocks, options, self.clock))
        else:
            picker = make_picker(blocks, options, self.clock)
        resume = self._shared_rows(ids, set(blocks)) if request.reuse else None
        self._last = Generation(
            self.target,
            ids,
            self.tokenizer.detokenizer,
            drafter=chosen[0] if chosen else None,
            reserve=chosen[1] if len(chosen) > 1 else None,
            options=options,
            picker=picker,
            resume=resume,
            reusable=True,
            clock=self.clock,
        )
        return self._last, route

    def complete(self, request: Request) -> Completion:
        """A whole request."""
        generation, route = self.start(request)
        text = "".join(event.text for event in generation if isinstance(event, Chunk))
        emitter = generation.emitter
        identity = self.promise.statement(generation)
        return Completion(
            text, emitter.token_ids, emitter.reason, route, generation.stats, identity
        )

    def route(self, speculation: Speculation) -> Route:
        """The route of a speculation value over the loaded drafters."""
        kinds = ("dflash", "mtp") if speculation == "auto" else (speculation,)
        attempts = []
        for kind in kinds if speculation != "none" else ():
            names = [one.name for one in self.drafters if one.name.startswith(kind)]
            problem = self.problems.get(kind, f"no {kind} drafter is loaded")
            attempts.append(Attempt(names[0]) if names else Attempt(problem=problem))
        return choose_route(speculation, attempts)

    def encode(self, request: Request) -> list[int]:
        """The request's prompt as ids."""
        if request.messages is not None:
            return render_chat(self.tokenizer, request.messages)
        assert request.prompt is not None
        if isinstance(request.prompt, str):
            return encode_text(self.tokenizer, request.prompt)
        return list(request.prompt)

    def _shared_rows(self, ids: Sequence[int], drafters: set[str]) -> Resume | None:
        """What of the last request's rows begins this one.

        Only of a request that ended between two rounds, since an error in one leaves caches that
        nobody vouches for; only where no drafter would have to start blind; and only where the
        target's rows are the same however its prompt is cut, if they have to be.
        """
        if self._last is None or not self._last.settled or not self.target.can_share_rows:
            return None
        rows = self._last.rows()
        mark = best_mark(rows, ids)
        if mark is None or not drafters <= {name for name, _ in mark.drafters}:
            return None
        return Resume(rows.cache, mark)


def load(
    model: str | None = None, drafter: str | None = None, speculation: str = "auto", **options: Any
) -> Engine:
    """Load a target and its drafters as an Engine; options as of load_pair. Without `model` it is
    the bundled pair."""
    return from_pair(load_pair(model, drafter, speculation, **options))


def from_pair(pair: Pair) -> Engine:
    """The engine over what load_pair loaded."""
    drafters = [one for one in (pair.drafter, pair.reserve) if one is not None]
    return Engine(pair.target, pair.tokenizer, drafters, dict(pair.problems), promise=pair.promise)
