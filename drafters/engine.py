"""Requests over one loaded target and its drafters, one after another or side by side.

No request affects another, but for what the gate has learned of the device, and the rows that a
later request shares with those before it. Any number of answers may be alive: each is at
rest between two events, and `take_turns` advances them by turns. One thread owns an engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from ..core.block import Block
from ..core.cache.bank import Bank
from ..core.cache.place import takes_back_any_row
from ..core.decode.boundaries import stable_positions
from ..core.decode.chat import encode_text, render_chat
from ..core.decode.drafter import Drafter, resolve_blocks
from ..core.decode.gate import GateMemory, RoutePicker, make_picker
from ..core.decode.loop import Generation
from ..core.decode.marks import GRID_TOKENS, MarkPlan
from ..core.decode.positions import beyond, beyond_drafters, tokens_within
from ..core.decode.prompt_ids import check_prompt
from ..core.decode.setup import Setup
from ..core.device import on_cpu
from ..core.errors import PromptError
from ..core.exact.promise import Promise
from ..core.options import GenerateOptions, LoadOptions, Speculation, parse_speculation
from ..core.owner import Owned, Owner
from ..core.report import SILENT, Report
from ..core.stats import Chunk, Event
from ..core.target.target import Target
from .admission import Admission, Asked
from .load_keywords import LoadKeywords
from .methods.table import method_of, methods_for
from .pair import Pair, load_pair
from .request import Completion, Request
from .routes import Attempt, Route, choose_route


@dataclass
class Answer:
    """A request that has begun: iterate it for events, as text comes.

    generation: the decode loop, whose `stats` are live; route: how it is decoded, and why; notes:
    what was changed of the request, a line each.
    """

    engine: Engine
    generation: Generation
    route: Route
    notes: tuple[str, ...] = ()
    _pieces: list[str] = field(default_factory=list)

    def __iter__(self) -> Generator[Event, None, None]:
        """Events from the first to the last; leaving early keeps what was decoded until then.
        WrongThread for any thread but the engine's."""
        return Owned(self.generation.owner, self._events())

    def _events(self) -> Generator[Event, None, None]:
        with closing(iter(self.generation)) as events:
            for event in events:
                if isinstance(event, Chunk):
                    self._pieces.append(event.text)
                yield event

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def flush(self) -> str:
        """The text that was held back when the answer was cut off, which is now part of it."""
        left = self.generation.emitter.flush()
        self._pieces.append(left)
        return left

    def completion(self) -> Completion:
        """What came of it, whether it is finished or was cut off."""
        generation, promise = self.generation, self.engine.promise
        drafters = self.engine.drafters
        first = next((one for one in drafters if one.name == self.route.route), None)
        return Completion(
            text=self.text,
            token_ids=generation.emitter.token_ids,
            finish_reason=generation.emitter.reason,
            route=self.route,
            stats=generation.stats,
            identity=promise.statement(generation),
            block=generation.block,
            drafter_bits=getattr(first, "bits", None),
            sampling=generation.options.sampling,
            promise=promise,
            adapter_path=self.engine.adapter_path,
        )


def take_turns(answers: Sequence[Answer]) -> Iterator[tuple[Answer, Event]]:
    """The events of several answers, one of each in turn until all are finished.

    A turn is one round of decoding, or one pass of a prompt. An answer's error ends the iteration;
    leaving it ends all answers, with what was decoded until then.
    """
    with ExitStack() as closing_all:
        waiting = deque[tuple[Answer, Iterator[Event]]]()
        for answer in answers:
            waiting.append((answer, closing_all.enter_context(closing(iter(answer)))))
        while waiting:
            answer, events = waiting.popleft()
            event = next(events, None)
            if event is not None:
                yield answer, event
                waiting.append((answer, events))


@dataclass
class Engine:
    """A target, its tokenizer and its drafters, in the order in which `auto` tries them.

    problems: why a drafter that was looked for is not there, by method (`dflash`, `mtp`).
    loaded: the route that the drafters were loaded for; adapter_path: a LoRA adapter over the
    target; bank: rows of requests that are over.
    """

    target: Target
    tokenizer: Any
    drafters: Sequence[Drafter] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    prefill_step_size: int = GenerateOptions.prefill_step_size
    promise: Promise = Promise()
    clock: Callable[[], float] = time.perf_counter
    loaded: Route | None = None
    adapter_path: str | None = None
    bank: Bank = field(default_factory=Bank)
    owner: Owner = field(default_factory=Owner)
    admission: Admission = field(init=False)
    _measured: dict[tuple[tuple[str, int], ...], GateMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admission = Admission(self.target)

    def start(self, request: Request | str, *, bounded: bool = False) -> Answer:
        """Begin a request, or answer a text: iterate the answer for events.

        bounded: no more tokens than the target was made for, with a note where that is fewer than
        were asked for, and than memory has room for; else the prompt alone must fit. Raises
        RouteUnavailable where an explicit `dflash` or `mtp` has no drafter, PromptError for a
        prompt that cannot be encoded, OptionError for options that the drafter cannot do,
        OutOfRoom where the caches do not fit into memory.
        """
        self.owner.require()
        request = Request(request) if isinstance(request, str) else request
        route = self.route(request.speculation)
        ids = check_prompt(self.encode(request), self.target.config.vocab_size)
        request, notes = self._cut_tokens(request, len(ids)) if bounded else (request, ())
        options = request.options(self.prefill_step_size)
        chosen = [one for one in self.drafters if one.name in (route.route, route.reserve)]
        blocks = resolve_blocks(chosen, options, self.target.widest)
        first, reserve = [*chosen, None, None][:2]
        marks = self._mark_plan(request, ids)
        tokens = len(ids) + (options.max_tokens if bounded else 0)
        count = len(marks.cuts(len(ids))) + 2 if marks else 0
        needed = self.admission.require_room(Asked(tokens, count, tuple(chosen)), self.bank)
        setup = Setup(
            reserve=reserve,
            picker=self._picker(blocks, options),
            resume=self.bank.resume(ids, set(blocks)) if marks and request.reuse else None,
            marks=marks,
            on_over=self._keep_rows if marks is not None else None,
            clock=self.clock,
        )
        detokenizer = self.tokenizer.detokenizer
        generation = Generation(self.target, ids, detokenizer, first, options, setup)
        self.admission.begin(generation, needed)
        if marks is not None:
            self.bank.watch(generation)
        return Answer(self, generation, route, notes)

    def keep_prefixes(self, limit_bytes: int | None = None) -> None:
        """Keep rows of past requests, up to so many bytes; None: a quarter of what is free now.

        Raises OptionError for a number of bytes that cannot be.
        """
        self.owner.require()
        admission = self.admission
        checked = admission.default_limit() if limit_bytes is None else limit_bytes
        self.bank = Bank(admission.check_limit(checked))

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

    def complete(self, request: Request | str) -> Completion:
        """A whole request, or the answer to a text. Raises as `start`."""
        answer = self.start(request)
        for _ in answer:
            pass
        return answer.completion()

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
        chat = request.chat
        if chat is not None:
            return render_chat(self.tokenizer, chat)
        if isinstance(request.prompt, str):
            return encode_text(self.tokenizer, request.prompt)
        return list(request.prompt or ())

    def _cut_tokens(self, request: Request, prompt_tokens: int) -> tuple[Request, tuple[str, ...]]:
        """The request with no more tokens than the target has positions for, and a note of it."""
        most, note = tokens_within(self.target, prompt_tokens, request.max_tokens)
        return (replace(request, max_tokens=most), (note,)) if note else (request, ())

    def _picker(self, blocks: Mapping[str, Block], options: GenerateOptions) -> RoutePicker:
        """A request's own, which begins with what earlier ones have measured of these blocks."""
        key = tuple((name, block.effective) for name, block in blocks.items())
        memory = self._measured.setdefault(key, GateMemory())
        return make_picker(blocks, options, self.clock, memory)

    def _mark_plan(self, request: Request, ids: Sequence[int]) -> MarkPlan | None:
        """Where the request's rows are marked for later ones; None where none may share them.

        On the CPU a prompt can be cut anywhere without a changed bit, but for layers that slide.
        Elsewhere it is cut on a grid that all requests have in common: where ids are promised, on
        that grid alone.
        """
        if not self.target.can_share_rows:
            return None
        chat = request.chat if request.reuse else None
        stable = () if chat is None else stable_positions(self.tokenizer, chat, ids)
        if on_cpu() and takes_back_any_row(self.target.make_cache(len(ids))):
            return MarkPlan(stable)
        exact = self.promise.asked or on_cpu()
        if not request.reuse:  # its passes are nobody else's, so they need no grid
            return None if exact else MarkPlan()
        on_grid = exact or self.bank.limit_bytes is not None
        return MarkPlan(stable, GRID_TOKENS if on_grid else None, on_grid=exact)

    def _keep_rows(self, generation: Generation) -> None:
        """Bank the rows of a request that is over, and that ended between two rounds: an error in
        one leaves caches that nobody vouches for."""
        if generation.settled:
            self.bank.put(generation.leave_rows())


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
        adapter_path=pair.adapter_path,
    )
