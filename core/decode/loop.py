"""The one decode loop: prefill, draft, verify, accept, roll back.

Every mode runs it: plain decoding is a round without drafts. It yields typed events and counts;
it prints nothing and knows a drafter only as a Protocol. Greedy selection is mlx-lm's own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..block import NO_BLOCK
from ..cache.kinds import cache_arrays, validate_absolute_boundary
from ..cache.resume import Rows, return_to
from ..device import on_cpu, start_on_gpu
from ..options import GenerateOptions
from ..owner import Owned, Owner
from ..stats import Chunk, Event, Finished, GenerationStats, PrefillProgress
from ..target.target import Target, TargetPass
from ..wired_limit import wired_limit
from .choose import Chooser
from .contexts import Contexts
from .drafter import Drafter, DrawingDrafter, check_proposal, resolve_blocks
from .emit import Detokenizer, Emitter, prime
from .finite import require_finite
from .gate import PLAIN, make_picker
from .history import History
from .lookahead import Lookahead
from .marks import Marks
from .phases import PhaseTimer
from .prefill_steps import PrefillSteps
from .prompt_ids import check_prompt
from .sampling import Proposal
from .setup import Setup

CLEAR_CACHE_EVERY_TOKENS = 256
"""As mlx-lm: give unused buffers back now and then, so that memory stays flat."""


@dataclass(frozen=True)
class Verified:
    """One verified block: what was fed, what came out, and the round's tokens before cuts."""

    row_ids: mx.array
    result: TargetPass
    drafts: list[int]
    tokens: list[int]


class Generation:
    """One request: iterate it for events; `stats` and `emitter` are live while it runs.

    drafter: what speculative rounds use, None for plain decoding. Closing the iterator between
    two events leaves the caches as after the tokens emitted so far.
    """

    def __init__(
        self,
        target: Target,
        prompt_ids: Sequence[int],
        detokenizer: Detokenizer,
        drafter: Drafter | None = None,
        options: GenerateOptions | None = None,
        setup: Setup | None = None,
    ) -> None:
        setup = setup or Setup()
        resume = setup.resume
        self.owner = Owner()
        self.target = target
        self.options = options or GenerateOptions()
        self.prompt_ids = check_prompt(prompt_ids, target.config.vocab_size)
        prime(detokenizer, self.prompt_ids)
        self.emitter = Emitter(
            detokenizer, target.config.eos_ids, self.options.stop, self.options.max_tokens
        )
        self.stats = GenerationStats(
            prompt_tokens=len(self.prompt_ids),
            reused_tokens=resume.mark.position if resume else 0,
            profiled=self.options.profile,
        )
        self.chooser = Chooser(self.options.sampling, target.config.vocab_size, setup.processors)
        self.history = History(self.prompt_ids, self.emitter.token_ids, self.chooser.reach)
        room = len(self.prompt_ids) + self.options.max_tokens
        self.cache: list[Any] = list(resume.cache) if resume else target.make_cache(room)
        self.position = resume.mark.position if resume else 0
        self.ahead = Lookahead(target, self.cache)
        wanted = not on_cpu() if setup.pipelined is None else setup.pipelined
        can = drafter is None and self.chooser.is_stateless and self.ahead.can_undo
        self.pipelined = wanted and can and target.can_queue
        self.phases = PhaseTimer(setup.clock, self.stats.phase_sec, enabled=self.options.profile)
        self._clock = setup.clock
        reserves = [setup.reserve] if setup.reserve else []
        drafters = [] if drafter is None else [drafter, *reserves]
        self.contexts = Contexts(drafters, resume.sessions if resume else None)
        self.marks = Marks(setup.marks, len(self.prompt_ids) - 1)
        self.marks.carry(resume.marks if resume else (), self.contexts)
        self._resume, self._on_over = resume, setup.on_over
        self.settled = False  # True between two rounds: caches are those of the emitted tokens
        self.over = False  # True once no further event can come
        self.blocks = resolve_blocks(drafters, self.options, target.widest)
        self.block = next(iter(self.blocks.values()), NO_BLOCK)
        self.picker = setup.picker or make_picker(self.blocks, self.options, setup.clock)
        self._last_route = self.picker.route

    def __iter__(self) -> Generator[Event, None, None]:
        """The whole request, first to last event; WrongThread for any thread but its own."""
        return Owned(self.owner, self._events())

    def _events(self) -> Generator[Event, None, None]:
        with self._alive():
            yield from self.prefill()
            started = self._clock()
            while self.emitter.reason is None:
                self.settled = False
                route = self._next_route()
                proposal = self.draft(route)
                verified = self.verify(proposal)
                accepted, accept_length = self.accept(verified, route)
                self.roll_back(verified, accept_length, route)
                self.picker.finish(accept_length, len(verified.drafts))
                self.stats.decode_sec = self._clock() - started
                self.settled = True
                ids = tuple(self.emitter.token_ids[-accept_length:])
                yield Chunk(self.emitter.drain(), ids, accepted)
        yield Finished(self.emitter.reason)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """From the first event to the last, to an error, or until nobody asks for more."""
        mx.reset_peak_memory()
        try:
            with wired_limit().raised():
                yield
        finally:
            self.ahead.drop()
            self.stats.peak_memory_bytes = mx.get_peak_memory()
            self.over = True
            if self._on_over is not None:
                self._on_over(self)

    def prefill(self) -> Iterator[Event]:
        """Feed the prompt as mlx-lm does: the body in passes, then the last token alone.

        Each drafter observes the trailing rows that can still matter to it.
        """
        started = self._clock()
        total = len(self.prompt_ids)
        if self._resume is not None:
            return_to(self.cache, self._resume.mark)
        self.contexts.start(self.marks.ends, self._resume.mark if self._resume else None)
        yield self._at_rest(PrefillProgress(self.position, total))
        can_cut = on_cpu() and self.ahead.can_undo  # a ring's bits follow the passes
        steps = PrefillSteps(self.options.prefill_step_size, self._clock if can_cut else None)
        while self.position < total - 1:
            self.settled = False
            count = steps.next(self.marks.next(self.position) - self.position)
            self._feed_prompt(self.position + count)
            mx.eval(cache_arrays(self.cache), self.contexts.state())
            mx.clear_cache()
            steps.finish(count)
            self.marks.passed(self.position, self.cache, self.contexts)
            yield self._at_rest(PrefillProgress(self.position, total))
        self.settled = False
        result = self._feed_prompt(total)
        first = self._judge(result, mx.array(self.prompt_ids[-1:]), None, total - 1).tokens
        self.stats.ttft_sec = self._clock() - started
        self.marks.ended(total, self.cache, self.contexts)
        yield PrefillProgress(total, total)
        self.emitter.take(first)
        self.settled = True
        yield Chunk(self.emitter.drain(), tuple(first))

    def rows(self) -> Rows:
        """The rows of this request as far as it came: what another may share."""
        tokens = self._tokens()[: self.position]
        return Rows(tuple(tokens), self.cache, tuple(self.marks.taken), self.contexts.sessions)

    def leave_rows(self) -> Rows:
        """The rows that a request leaves when it is over, its last place marked."""
        self.ahead.drop()
        self.marks.ended(self.position, self.cache, self.contexts)
        return self.rows()

    def _at_rest(self, event: PrefillProgress) -> PrefillProgress:
        """The event; caches and contexts are those of `position` tokens, and whole."""
        self.settled = True
        return event

    def draft(self, route: str) -> Proposal | None:
        """Draft ids (k,), still on the device; None where this round is a plain step."""
        if route == PLAIN:
            return None
        limit = self.picker.draft_limit(self.blocks[route].draft_tokens)
        drafter = self.contexts.align(route, self.position)
        self.stats.drafter_resets = self.contexts.resets
        count, draws = min(limit, self.emitter.remaining), self.chooser.draws
        if draws is not None and isinstance(drafter, DrawingDrafter):
            proposal = drafter.propose(self._anchor(), count, draws)
        else:  # certain drafts: right for greedy decoding, and lossless for sampling too
            proposal = Proposal(drafter.draft(self._anchor(), count))
        check_proposal(route, proposal, count)
        start_on_gpu([proposal.ids])
        self.phases.mark("draft", [proposal.ids])
        return proposal

    def verify(self, proposal: Proposal | None) -> Verified:
        """One target forward over the anchor and the drafts, and the round's one device sync."""
        validate_absolute_boundary(self.cache, self.position + self.ahead.rows)
        if self.pipelined:
            step = self.ahead.step(self._anchor(), more=self.emitter.remaining > 1)
            self.stats.target_passes += 1
            self.phases.mark("verify", [step.choices])
            tokens = step.fetch()[0]
            require_finite(self.target, step.row_ids, step.result, tokens)
            return Verified(step.row_ids, step.result, [], tokens)
        row_ids = self._anchor()
        if proposal is not None:
            row_ids = self.target.block_ids(row_ids, proposal.ids)
        result = self.target.verify_rows(row_ids[None], self.cache, self.contexts.tap_ids)
        self.stats.target_passes += 1
        verified = self._judge(result, row_ids, proposal, self.position)
        self.phases.mark("verify", [])
        return verified

    def accept(self, verified: Verified, route: str) -> tuple[int, int]:
        """(drafts kept, tokens emitted), cut at eos, stop string and max_tokens."""
        tokens = verified.tokens
        accept_length = self.emitter.take(tokens)
        accepted = min(len(tokens) - 1, accept_length)
        self.stats.count_route(route)
        if verified.drafts:
            self.stats.count_round(len(verified.drafts), len(tokens) - 1, accept_length)
        else:
            self.stats.plain_steps += 1
        self.stats.decoded_tokens += accept_length
        self.phases.mark("accept", [])
        return accepted, accept_length

    def roll_back(self, verified: Verified, keep: int, route: str) -> None:
        """Keep the rows of the emitted tokens but the last, and show them to every drafter.

        The block's row 0 is the anchor, so `keep` emitted tokens leave `keep` rows.
        """
        rows = len(verified.row_ids)
        self.target.rollback(self.cache, verified.result.tape, keep, rows - keep)
        self.contexts.observe(self.position, verified.row_ids[:keep], verified.result, active=route)
        before, self.position = self.position, self.position + keep
        if self.emitter.reason is not None:
            self.ahead.drop()
        if verified.drafts and self.target.rollback_leaves_work:  # else the draft's start is enough
            start_on_gpu([*cache_arrays(self.cache), *self.contexts.state()])
        if self.phases.enabled:
            self.phases.mark("rollback", [*cache_arrays(self.cache), *self.contexts.state()])
        if self.position // CLEAR_CACHE_EVERY_TOKENS > before // CLEAR_CACHE_EVERY_TOKENS:
            mx.clear_cache()

    def _next_route(self) -> str:
        """The round's route; at a switch the device first ends what the last one left to do."""
        route = self.picker.route
        if route != self._last_route:
            mx.eval(cache_arrays(self.cache), self.contexts.state())
            self._last_route = route
        self.phases.start()
        self.picker.start()
        return route

    def _judge(
        self, result: TargetPass, row_ids: mx.array, proposal: Proposal | None, position: int
    ) -> Verified:
        """The target's tokens for a pass over row_ids from `position`; waits for the device."""
        logits = self.target.logits_from_hidden(result.hidden).squeeze(0)
        judged = self.chooser.judge(logits, row_ids, self.history.before(position), proposal)
        drafted = [] if proposal is None else [proposal.ids]
        read = self.target.start_reading([*drafted, *judged.arrays()])()
        drafts = read.pop(0) if drafted else []
        tokens = judged.tokens(drafts, read)
        require_finite(self.target, row_ids, result, tokens)
        return Verified(row_ids, result, drafts, tokens)

    def _tokens(self) -> list[int]:
        """The prompt and everything emitted."""
        return [*self.prompt_ids, *self.emitter.token_ids]

    def _feed_prompt(self, end: int) -> TargetPass:
        ids = mx.array(self.prompt_ids[self.position : end])
        result = self.target.forward_with_taps(
            ids[None], self.cache, self.contexts.taps_wanted(self.position, end)
        )
        self.contexts.observe(self.position, ids, result, active=None)
        self.position = end
        return result

    def _anchor(self) -> mx.array:
        """(1,): the last emitted token, which is not in the cache yet."""
        return mx.array([self.emitter.token_ids[-1]])
