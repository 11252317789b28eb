"""Requests one after another over one loaded target and its drafters.

No request affects the next, but for what the gate has learned of the device, and the rows that a
later request shares with the one before it. One request at a time; not for several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from ..core.block import Block
from ..core.cache.resume import Resume, best_mark
from ..core.decode.chat import Chat, encode_text, render_chat
from ..core.decode.drafter import Drafter, resolve_blocks
from ..core.decode.gate import RoutePicker
from ..core.decode.loop import Generation, make_picker
from ..core.decode.positions import beyond, beyond_drafters
from ..core.decode.setup import Setup
from ..core.errors import PromptError
from ..core.exact.promise import Promise
from ..core.options import GenerateOptions, LoadOptions, Speculation, parse_speculation
from ..core.report import SILENT, Report
from ..core.sampling_options import SamplingOptions
from ..core.stats import Chunk, FinishReason, GenerationStats
from ..core.target.target import Target
from .load_keywords import LoadKeywords
from .methods.table import method_of, methods_for
from .pair import Pair, load_pair
from .routes import Attempt, Route, choose_route


@dataclass(frozen=True)
class Request:
    """One text to answer, and how.

    prompt: raw text or ids; messages: a chat, in place of a prompt; tools and reasoning: of a chat,
    as the fields of Chat. max_tokens to gate: as the
    fields of GenerateOptions. speculation: the drafter of this request. reuse: share the cached
    rows of the request before, where they begin alike. profile: time each phase, waiting for the
    device in between.
    """

    prompt: str | Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    reasoning: str | None = None
    max_tokens: int = GenerateOptions.max_tokens
    sampling: SamplingOptions = SamplingOptions()
    stop: tuple[str, ...] = ()
    speculation: Speculation = "auto"
    block_size: int | None = None
    draft_tokens: int | None = None
    gate: bool = True
    reuse: bool = True
    profile: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise PromptError("a request has either a prompt or messages")
        if self.messages is None and (self.tools or self.reasoning is not None):
            raise PromptError("tools and reasoning go through a chat template: give messages")

    def options(self, prefill_step_size: int) -> GenerateOptions:
        """As the decode loop takes them. Raises OptionError for values that no run could use."""
        return GenerateOptions(
            max_tokens=self.max_tokens,
            block_size=self.block_size,
            draft_tokens=self.draft_tokens,
            gate=self.gate,
            prefill_step_size=prefill_step_size,
            stop=self.stop,
            profile=self.profile,
            sampling=self.sampling,
        )


def make_request(
    options: GenerateOptions,
    speculation: Speculation,
    *,
    prompt: str | Sequence[int] | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    reuse: bool = True,
) -> Request:
    """The request that decodes a prompt, or messages, under these options."""
    return Request(
        prompt=prompt,
        messages=messages,
        max_tokens=options.max_tokens,
        sampling=options.sampling,
        stop=options.stop,
        speculation=speculation,
        block_size=options.block_size,
        draft_tokens=options.draft_tokens,
        gate=options.gate,
        reuse=reuse,
        profile=options.profile,
    )


@dataclass(frozen=True)
class Completion:
    """A finished request.

    identity: what may be said of its ids, None where nothing is. block: the rows of its passes.
    drafter_bits: bits a weight of its first drafter, None for plain decoding and MTP heads.
    promise: what was measured of the target's rows.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    route: Route
    stats: GenerationStats
    identity: str | None
    block: Block
    drafter_bits: int | None
    sampling: SamplingOptions
    promise: Promise

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of a request, whichever command answered it."""
        plan = self.promise.plan
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.stats.prompt_tokens,
            "speculation": {
                **self.route.to_dict(),
                "block": self.block.to_dict(),
                "drafter_bits": self.drafter_bits,
            },
            "identity": {
                "statement": self.identity,
                "exact": self.promise.asked,
                "plan": plan.to_dict() if plan else None,
            },
            "sampling": self.sampling.to_dict(),
            "stats": self.stats.to_dict(),
        }


@dataclass
class Engine:
    """A target, its tokenizer and its drafters, in the order in which `auto` tries them.

    problems: why a drafter that was looked for is not there, by method (`dflash`, `mtp`).
    loaded: the route that the drafters were loaded for.
    """

    target: Target
    tokenizer: Any
    drafters: Sequence[Drafter] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    prefill_step_size: int = GenerateOptions.prefill_step_size
    promise: Promise = Promise()
    clock: Callable[[], float] = time.perf_counter
    loaded: Route | None = None
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
        first, reserve = [*chosen, None, None][:2]
        setup = Setup(
            reserve=reserve,
            picker=self._picker(blocks, options),
            resume=self._shared_rows(ids, set(blocks)) if request.reuse else None,
            reusable=True,
            clock=self.clock,
        )
        self._last = Generation(self.target, ids, self.tokenizer.detokenizer, first, options, setup)
        return self._last, route

    def position_notes(self, prompt_tokens: int, tokens: int) -> list[str]:
        """What to say of a request with this many tokens; empty where all models were made for
        as many."""
        said = beyond(self.target, prompt_tokens, tokens)
        return [*([said] if said else []), *beyond_drafters(self.drafters, prompt_tokens, tokens)]

    def require_positions(self, request: Request) -> None:
        """PromptError where a request could run beyond the target's positions."""
        said = beyond(self.target, len(self.encode(request)), request.max_tokens)
        if said is not None:
            raise PromptError(f"{said}; shorten the prompt, or give a smaller max_tokens")

    def complete(self, request: Request) -> Completion:
        """A whole request."""
        generation, route = self.start(request)
        text = "".join(event.text for event in generation if isinstance(event, Chunk))
        return self.completion(generation, route, text)

    def completion(self, generation: Generation, route: Route, text: str) -> Completion:
        """What came of a generation of this engine, finished or cut off; text: what it yielded."""
        emitter = generation.emitter
        first = next((one for one in self.drafters if one.name == route.route), None)
        return Completion(
            text=text,
            token_ids=emitter.token_ids,
            finish_reason=emitter.reason,
            route=route,
            stats=generation.stats,
            identity=self.promise.statement(generation),
            block=generation.block,
            drafter_bits=getattr(first, "bits", None),
            sampling=generation.options.sampling,
            promise=self.promise,
        )

    def route(self, speculation: Speculation) -> Route:
        """The route of a speculation value over the loaded drafters."""
        if self.loaded is not None and self.loaded.requested == speculation:
            return self.loaded
        attempts = []
        for method in methods_for(speculation):
            names = [one.name for one in self.drafters if method_of(one.name) is method]
            kind = method.speculation
            problem = self.problems.get(kind, f"no {kind} drafter is loaded")
            attempts.append(Attempt(names[0]) if names else Attempt(problem=problem))
        return choose_route(speculation, attempts)

    def encode(self, request: Request) -> list[int]:
        """The request's prompt as ids."""
        if request.messages is not None:
            return render_chat(
                self.tokenizer, Chat(request.messages, request.tools, request.reasoning)
            )
        if isinstance(request.prompt, str):
            return encode_text(self.tokenizer, request.prompt)
        return list(request.prompt or ())

    def _picker(self, blocks: Mapping[str, Block], options: GenerateOptions) -> RoutePicker:
        """Without the gate a new one; with it the one that has learned of these blocks before."""
        if not options.gated:
            return make_picker(blocks, options, self.clock)
        key = tuple((name, block.effective) for name, block in blocks.items())
        return self._pickers.setdefault(key, make_picker(blocks, options, self.clock))

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
    model: str | None = None,
    drafter: str | None = None,
    speculation: str = "auto",
    *,
    report: Report = SILENT,
    **options: Unpack[LoadKeywords],
) -> Engine:
    """Load a target and its drafters as an Engine; without `model` it is the bundled pair.

    options: the other fields of LoadOptions (`exact=True`, `drafter_bits=16`, ...). report: told
    what is being waited for. Raises as load_pair.
    """
    requested = parse_speculation(speculation)
    loading = LoadOptions(model=model, drafter=drafter, speculation=requested, **options)
    return from_pair(load_pair(loading, report))


def from_pair(pair: Pair, prefill_step_size: int = GenerateOptions.prefill_step_size) -> Engine:
    """The engine over what load_pair loaded; prefill_step_size: prompt tokens a prefill pass."""
    return Engine(
        pair.target,
        pair.tokenizer,
        pair.drafters,
        dict(pair.problems),
        prefill_step_size,
        promise=pair.promise,
        loaded=pair.route,
    )
