"""How the faults of `planted_faults.py` are put into the real code, until a patch is undone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.bench import speed
from dflash_suite.core.cache import classes
from dflash_suite.core.decode import choose, loop
from dflash_suite.core.decode.choose import Chooser, Draws, Processor
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.decode.sampling import (
    Proposal,
    accept_or_resample,
    draw,
    target_probs,
)
from dflash_suite.drafters.dflash import layers
from dflash_suite.drafters.dflash.cuda.draft import FusedDraft
from dflash_suite.drafters.dflash.layers import CandidateSelector
from dflash_suite.drafters.mtp.drafter import MtpDrafter, MtpModel

Plant = Callable[[pytest.MonkeyPatch], None]


def draws_reported_as(**changes: Any) -> Plant:
    """`Draws.propose` draws under the options and reports q under others."""

    def propose(self: Draws, logits: mx.array) -> Proposal:
        ids = draw(target_probs(logits, self.options), self.key())
        return Proposal(ids, target_probs(logits, replace(self.options, **changes)))

    return lambda patch: patch.setattr(Draws, "propose", propose)


def selector_reports(change: Callable[[Proposal, float], Proposal]) -> Plant:
    """DFlash2's selector reports something else than what it drew from; change: (proposal,
    temperature) -> what is reported."""
    original = CandidateSelector.propose

    def propose(self: Any, hidden: Any, logits: Any, anchor: Any, draws: Draws) -> Proposal:
        proposal = original(self, hidden, logits, anchor, draws)
        return change(proposal, draws.options.temperature)

    return lambda patch: patch.setattr(CandidateSelector, "propose", propose)


def without_temperature(proposal: Proposal, temperature: float) -> Proposal:
    assert proposal.probs is not None
    flat = proposal.probs**temperature
    return replace(proposal, probs=flat / flat.sum(axis=-1, keepdims=True))


def for_other_candidates(proposal: Proposal, temperature: float) -> Proposal:
    assert proposal.candidates is not None
    return replace(proposal, candidates=proposal.candidates[:, ::-1])


def rows_judged_one_token_short(patch: pytest.MonkeyPatch) -> None:
    """A row's own token is not among those that its penalties see."""
    original = Chooser._processed

    def short(processor: Processor) -> Processor:
        return lambda tokens, row: processor(tokens[:-1], row)

    def processed(self: Chooser, logits: mx.array, tokens: mx.array) -> mx.array:
        other = copy.copy(self)
        other._processors = [short(one) for one in self._processors]
        return original(other, logits, tokens)

    patch.setattr(Chooser, "_processed", processed)


def history_without(part: slice) -> Plant:
    """The tokens before the block lack one; part: what is left of them."""
    original = Chooser.judge

    def judge(self: Any, logits: Any, row_ids: Any, history: Any, proposal: Any) -> Any:
        return original(self, logits, row_ids, history[part], proposal)

    return lambda patch: patch.setattr(Chooser, "judge", judge)


def one_key_accepts_and_resamples(patch: pytest.MonkeyPatch) -> None:
    """The residual is drawn with the key that accepted."""

    def judged(probs: mx.array, proposal: Proposal, key: mx.array) -> tuple[mx.array, mx.array]:
        with pytest.MonkeyPatch.context() as inside:
            split = mx.random.split
            inside.setattr(mx.random, "split", lambda key: [split(key)[0]] * 2)
            return accept_or_resample(probs, proposal, key)

    patch.setattr(choose, "accept_or_resample", judged)


def one_key_for_every_draw(patch: pytest.MonkeyPatch) -> None:
    """The chain of keys stands still."""
    patch.setattr(Draws, "key", lambda self: self._key)


def pre_head_observes_normed_rows(patch: pytest.MonkeyPatch) -> None:
    """A head of kind `pre` is shown the rows after the target's final norm."""
    original = MtpDrafter.observe

    def observe(self: MtpDrafter, rows: TargetRows) -> None:
        original(self, replace(rows, taps=rows.hidden if self.hidden == "pre" else rows.taps))

    patch.setattr(MtpDrafter, "observe", observe)


def pre_head_chains_normed_rows(patch: pytest.MonkeyPatch) -> None:
    """A head of kind `pre` goes on from its own row after its norm."""
    original, made = MtpModel.fuse, MtpDrafter._chain

    def chain(self: MtpDrafter, *args: Any) -> Proposal:
        with pytest.MonkeyPatch.context() as inside:
            first = [True]

            def fuse(model: MtpModel, embedded: mx.array, hidden: mx.array) -> mx.array:
                again = not first.pop() if first else True
                hidden = model.norm(hidden) if again and self.hidden == "pre" else hidden
                return original(model, embedded, hidden)

            inside.setattr(MtpModel, "fuse", fuse)
            return made(self, *args)

    patch.setattr(MtpDrafter, "_chain", chain)


def mask_hides_the_first_live_row(patch: pytest.MonkeyPatch) -> None:
    """A mask over a whole buffer begins one row too late where something stands in front."""
    original = layers.mask_outside

    def mask_outside(mask: mx.array | None, rows: int, live: slice, count: int) -> mx.array:
        whole = original(mask, rows, live, count)
        first = live.start + (live.start > 0)
        shown: mx.array = whole & (mx.arange(count) >= first)[None]
        return shown

    patch.setattr(layers, "mask_outside", mask_outside)


class Shifted:
    """A context buffer that says other rows count than do."""

    def __init__(self, inner: Any, first: int, rows: int) -> None:
        self._inner, self.start, self.rows = inner, inner.start + first, inner.rows + rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def fused_draft_sees(first: int, rows: int) -> Plant:
    """The kernels are given a context that begins `first` rows later and has `rows` more."""
    original = FusedDraft.draft

    def draft(self: FusedDraft, anchor: Any, count: int, position: int, buffers: Any) -> mx.array:
        shifted: Any = [Shifted(one, first, rows) for one in buffers]
        return original(self, anchor, count, position, shifted)

    return lambda patch: patch.setattr(FusedDraft, "draft", draft)


def ring_is_held_by_reference(patch: pytest.MonkeyPatch) -> None:
    """A ring's bookmark is the ring itself, which later rows are written into."""
    original = classes.RingCaches.hold

    def hold(self: Any, layer: Any, lasting: bool) -> Any:
        held = original(self, layer, lasting)
        if isinstance(held, classes.RingRows):
            return replace(held, keys=layer.keys, values=layer.values)
        return held

    patch.setattr(classes.RingCaches, "hold", hold)


def ring_goes_on_in_its_bookmark(patch: pytest.MonkeyPatch) -> None:
    """Coming back hands out the bookmark itself, so that it is good for one return."""
    original = classes.RingCaches.go_back

    def go_back(self: Any, layer: Any, count: int, held: Any) -> None:
        original(self, layer, count, held)
        if isinstance(held, classes.RingRows):
            layer.keys, layer.values = held.keys, held.values

    patch.setattr(classes.RingCaches, "go_back", go_back)


def interval_at(confidence: float) -> Plant:
    """The interval of a ratio is taken at another level than it says."""
    original = speed.bootstrap_interval

    def interval(groups: Any, seed: int = speed.SEED) -> tuple[float, float]:
        return original(groups, seed, confidence=confidence)

    return lambda patch: patch.setattr(speed, "bootstrap_interval", interval)


def buffers_are_kept_while_decoding(patch: pytest.MonkeyPatch) -> None:
    """The interval at which unused buffers are given back is never reached."""
    roll_back = loop.Generation.roll_back

    def rolled(self: Any, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(loop, "CLEAR_CACHE_EVERY_TOKENS", 1 << 40)
            roll_back(self, *args)

    patch.setattr(loop.Generation, "roll_back", rolled)


def buffers_are_kept_in_the_prefill(patch: pytest.MonkeyPatch) -> None:
    """No chunk of the prompt gives its buffers back."""
    prefill = loop.Generation.prefill

    def kept(self: Any) -> Any:
        events = prefill(self)
        while True:
            with pytest.MonkeyPatch.context() as inside:
                inside.setattr(mx, "clear_cache", lambda: None)
                event = next(events, None)
            if event is None:
                return
            yield event

    patch.setattr(loop.Generation, "prefill", kept)
