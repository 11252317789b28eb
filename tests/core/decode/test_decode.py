"""The loop: cuts inside a block, counters, events, what the drafter is shown, clocks and memory."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import greedy_sampler

from dflash_suite.core.decode.choose import greedy
from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.prompt_ids import check_prompt
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.errors import CacheError, PromptError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.stats import Chunk, Event, Finished, PrefillProgress
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.pair import Pair
from tests.kit.decoding import generate
from tests.kit.scripted import (
    Policy,
    ScriptedDrafter,
    all_right,
    all_wrong,
    mixed,
    random_ids,
    wrong_at,
)
from tests.kit.snapshots import assert_as_fed_alone, bits, meaning
from tests.kit.tiny import (
    VOCAB,
    CountingBackbone,
    Kind,
    PieceDetokenizer,
    assert_varied,
    make_target,
    prompt,
    stock_greedy,
    with_eos,
)

PROMPT_IDS = prompt(12)
KINDS: tuple[Kind, ...] = ("hybrid", "dense")


@functools.cache
def tiny_target(kind: Kind = "hybrid") -> Target:
    return make_target(kind)


@functools.cache
def plain(kind: Kind = "hybrid", prompt_tokens: int = 12) -> list[int]:
    """What stock mlx-lm decodes after a prompt of that many tokens."""
    ids = stock_greedy(tiny_target(kind).backbone.model, prompt(prompt_tokens), 70)
    assert_varied(ids)
    return ids


def generation(
    policy: Policy | None = None,
    kind: Kind = "hybrid",
    *,
    target: Target | None = None,
    drafter: ScriptedDrafter | None = None,
    pieces: dict[int, str] | None = None,
    prompt_ids: list[int] = PROMPT_IDS,
    clock: Callable[[], float] | None = None,
    max_tokens: int = 30,
    **options: Any,
) -> Generation:
    if policy is not None:
        continuation = plain(kind, len(prompt_ids))
        drafter = ScriptedDrafter(policy, continuation, len(prompt_ids))
    setup = None if clock is None else Setup(clock=clock)
    return Generation(
        target or tiny_target(kind),
        prompt_ids,
        PieceDetokenizer(pieces),
        drafter=drafter,
        options=GenerateOptions(max_tokens=max_tokens, **{"gate": False, **options}),
        setup=setup,
    )


def finish(run: Generation) -> list[Chunk]:
    """Run to the end; every event is checked on the way."""
    events: list[Event] = list(run)
    chunks = [event for event in events if isinstance(event, Chunk)]
    assert isinstance(events[-1], Finished)
    assert [type(event) for event in events].count(Finished) == 1
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert ids == run.emitter.token_ids
    assert_counters(run, chunks)
    return chunks


def assert_counters(run: Generation, chunks: list[Chunk]) -> None:
    """What must hold of the counters of any run."""
    stats = run.stats
    assert stats.drafted == sum(stats.trials)
    assert stats.accepted == sum(stats.accepts) == sum(chunk.accepted for chunk in chunks)
    assert stats.emitted == sum(stats.accept_lengths)
    assert stats.rounds == len(stats.accept_lengths)
    assert 1 + stats.emitted + stats.plain_steps == len(run.emitter.token_ids)
    assert stats.decoded_tokens == stats.emitted + stats.plain_steps
    assert stats.target_passes == stats.rounds + stats.plain_steps == len(chunks) - 1
    assert all(a <= t <= stats.rounds for a, t in zip(stats.accepts, stats.trials, strict=True))
    for counts in (stats.accepts, stats.trials):
        assert counts == sorted(counts, reverse=True), "survival never rises with the position"
    assert stats.prompt_tokens == len(run.prompt_ids)
    assert run.position == len(run.prompt_ids) + len(run.emitter.token_ids) - 1
    assert stats.peak_memory_bytes > 0


def assert_cut(run: Generation, kind: Kind, emitted: int) -> None:
    """The answer is plain's first `emitted` ids and the caches are as if nothing else was fed."""
    assert run.emitter.token_ids == plain(kind)[:emitted]
    fed = [*PROMPT_IDS, *plain(kind)[: emitted - 1]]
    assert_as_fed_alone(run.cache, run.target.backbone.model, fed, len(PROMPT_IDS))


# --- cuts inside a block ------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("kind", KINDS)
def test_eos_inside_an_accepted_block(kind: Kind, at: int) -> None:
    """Six right drafts; the eos is draft `at`, or for 7 the target's own token behind them."""
    eos = plain(kind)[at]
    assert eos not in plain(kind)[:at]
    run = generation(all_right(), kind, target=with_eos(tiny_target(kind), [eos]), block_size=7)
    chunks = finish(run)
    assert_cut(run, kind, at + 1)
    assert run.emitter.reason == "stop"
    stats = run.stats
    judged = min(at, 6)
    assert (stats.rounds, stats.accept_lengths) == (1, [at])
    assert (stats.drafted, stats.accepted, stats.discarded) == (judged, judged, 6 - judged)
    assert stats.trials == [1] * judged + [0] * (6 - judged)
    assert chunks[-1].accepted == judged
    assert f"<{eos}>" not in "".join(chunk.text for chunk in chunks), "eos adds no text"


def test_eos_behind_a_wrong_draft() -> None:
    """The target's own token ends it: the wrong draft was judged, and so was every one after."""
    eos = plain()[3]
    run = generation(wrong_at(2, VOCAB), target=with_eos(tiny_target(), [eos]), block_size=7)
    finish(run)
    assert_cut(run, "hybrid", 4)
    assert (run.stats.drafted, run.stats.accepted, run.stats.discarded) == (6, 2, 0)


def test_eos_as_the_very_first_token() -> None:
    """It belongs to no round: nothing is drafted."""
    target = with_eos(tiny_target(), [plain()[0]])
    run = generation(all_right(), target=target)
    chunks = finish(run)
    assert run.emitter.token_ids == plain()[:1] and run.emitter.reason == "stop"
    assert run.stats.rounds == run.stats.target_passes == 0 and chunks[0].text == ""
    assert [layer.offset for layer in run.cache] == [len(PROMPT_IDS)] * 4


def test_one_of_several_eos_ids(kind: Kind = "hybrid") -> None:
    """Any of the union ends the answer."""
    ids = plain(kind)
    run = generation(all_right(), target=with_eos(tiny_target(), [ids[20], ids[9]]), block_size=5)
    finish(run)
    assert_cut(run, kind, 10)


@pytest.mark.parametrize("max_tokens", range(1, 12))
@pytest.mark.parametrize("policy", [all_right(), wrong_at(1, VOCAB), all_wrong(VOCAB)])
def test_max_tokens_inside_a_round(policy: Policy, max_tokens: int) -> None:
    run = generation(policy, max_tokens=max_tokens, block_size=5)
    finish(run)
    assert_cut(run, "hybrid", max_tokens)
    assert run.emitter.reason == "length"


@pytest.mark.parametrize("last", range(2, 7))
@pytest.mark.parametrize("kind", KINDS)
def test_stop_string_over_two_tokens_inside_a_block(kind: Kind, last: int) -> None:
    """Its second token is an accepted draft with accepted ones behind it."""
    ids = plain(kind)
    pieces = {ids[last - 1]: "x EN", ids[last]: "D y"}
    assert len(set(ids[: last + 1])) == last + 1
    run = generation(all_right(), kind, pieces=pieces, stop=("END",), block_size=8)
    chunks = finish(run)
    assert_cut(run, kind, last + 1)
    assert run.emitter.reason == "stop" and run.stats.rounds == 1
    text = "".join(chunk.text for chunk in chunks)
    assert text == "".join(f"<{token}>" for token in ids[: last - 1]) + "x "
    assert run.stats.discarded == 7 - last


def test_stop_string_across_two_rounds() -> None:
    """The first round shows nothing of it, the second cuts behind its own first token."""
    ids = plain()
    pieces = {ids[5]: "x EN", ids[6]: "D y"}
    run = generation(all_right(), pieces=pieces, stop=("END",), block_size=5)
    chunks = finish(run)
    assert_cut(run, "hybrid", 7)
    assert run.stats.accept_lengths == [5, 1] and run.stats.discarded == 3
    assert chunks[1].text.endswith("x ") and chunks[2].text == ""


@pytest.mark.parametrize("policy", [mixed(VOCAB, 4), random_ids(2, VOCAB)])
def test_text_is_the_same_as_without_drafts(policy: Policy) -> None:
    """Streamed pieces differ, their sum does not; every run ends with a reason."""
    ids = plain()
    stop = (f"<{ids[15]}><{ids[16]}>",)
    texts = []
    for run in (generation(stop=stop), generation(policy, stop=stop, block_size=5)):
        texts.append("".join(chunk.text for chunk in finish(run)))
        assert run.emitter.reason == "stop"
        assert run.emitter.token_ids == ids[:17]
    assert texts[0] == texts[1] == "".join(f"<{token}>" for token in ids[:15])


# --- counters and events ------------------------------------------------------------------------


def test_plain_decoding_counts_steps_and_no_rounds() -> None:
    run = generation(max_tokens=20)
    finish(run)
    stats = run.stats
    assert run.emitter.token_ids == plain()[:20]
    assert (stats.plain_steps, stats.rounds, stats.drafted, stats.emitted) == (19, 0, 0, 0)
    assert stats.tokens_per_round is None and stats.accept_rate is None
    assert stats.accepts == stats.trials == stats.accept_lengths == []


def test_counters_of_a_mixed_run() -> None:
    """Worked out by hand: 0, 1, 2, 3, 4 of four drafts kept, and so on."""
    run = generation(mixed(VOCAB, 4), max_tokens=31, block_size=5)
    finish(run)
    stats = run.stats
    assert stats.accept_lengths == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    assert stats.trials == [10, 10, 10, 10]
    assert stats.accepts == [8, 6, 4, 2]
    assert (stats.drafted, stats.accepted, stats.discarded, stats.emitted) == (40, 20, 0, 30)
    assert stats.tokens_per_round == 3.0 and stats.accept_rate == 0.5
    assert stats.drafter_resets == 0


def test_one_token_needs_no_round() -> None:
    run = generation(all_right(), max_tokens=1)
    finish(run)
    assert run.emitter.token_ids == plain()[:1] and run.emitter.reason == "length"
    assert run.stats.rounds == 0 and run.stats.tokens_per_second is None


def test_events_in_order() -> None:
    run = generation(all_right(), prefill_step_size=5, max_tokens=12)
    events = list(run)
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    assert progress == [PrefillProgress(done, 12) for done in (0, 5, 10, 11, 12)]
    assert events[: len(progress)] == progress
    assert events[-1] == Finished("length")
    first = events[len(progress)]
    assert isinstance(first, Chunk) and first.token_ids == tuple(plain()[:1])
    assert first.accepted == 0


def test_the_first_text_comes_before_the_end() -> None:
    """H9: streaming, not a replay of a finished answer."""
    run = generation(all_right())
    for event in run:
        if isinstance(event, Chunk):
            break
    assert len(run.emitter.token_ids) == 1 and run.emitter.reason is None


def test_default_block_is_six_drafts_of_eight() -> None:
    """The lesser of the trained block and 7 rows, the anchor and six drafts."""
    drafter = ScriptedDrafter(all_right(), plain(), len(PROMPT_IDS), trained_block_size=8)
    finish(generation(drafter=drafter, max_tokens=30))
    assert max(drafter.draft_counts) == 6
    small = ScriptedDrafter(all_right(), plain(), len(PROMPT_IDS), trained_block_size=4)
    finish(generation(drafter=small, max_tokens=30))
    assert max(small.draft_counts) == 3


def test_never_more_drafts_than_tokens_that_may_come() -> None:
    drafter = ScriptedDrafter(all_wrong(VOCAB), plain(), len(PROMPT_IDS))
    finish(generation(drafter=drafter, max_tokens=10, block_size=8))
    assert drafter.draft_counts == [min(7, 10 - emitted) for emitted in range(1, 10)]


@pytest.mark.parametrize("bad", [[], [VOCAB], [-1], [1, 2, 2**40]])
def test_prompts_that_cannot_be_decoded(bad: list[int]) -> None:
    with pytest.raises(PromptError, match="no tokens" if not bad else "outside the target's"):
        generation(prompt_ids=bad)


def test_prompt_ids_become_plain_ints() -> None:
    assert check_prompt((1, 2), 3) == [1, 2]


def test_greedy_is_stock_selection_in_the_logits_dtype() -> None:
    """In bf16 the subtraction makes a tie that plain logits do not have: mlx-lm takes the first
    of the two, where argmax of the logits would take the second."""
    row = mx.zeros((VOCAB,))
    row[3], row[7] = 0.5, 0.50390625
    for dtype, expected in ((mx.float32, 7), (mx.bfloat16, 3)):
        logits = mx.stack([row, row[::-1]])[None].astype(dtype)
        assert mx.argmax(logits[0, 0]).item() == 7
        stock = [greedy_sampler(one - mx.logsumexp(one, keepdims=True)) for one in logits[0]]
        assert greedy(logits[0]).tolist() == [choice.item() for choice in stock]
        assert greedy(logits[0])[0].item() == expected


# --- prefill ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_chunks_change_nothing(kind: Kind) -> None:
    """ids, caches and everything that the drafter sees, for chunks of 1, 7, 32 and 512."""
    prompt_ids = prompt(40)
    seen = []
    for step in (1, 7, 32, 512):
        drafter = ScriptedDrafter(mixed(VOCAB, 5), plain(kind, 40), 40, tap_ids=(1, 3))
        run = generation(
            kind=kind, drafter=drafter, prompt_ids=prompt_ids, prefill_step_size=step, max_tokens=16
        )
        finish(run)
        assert run.emitter.token_ids == plain(kind, 40)[:16]
        seen.append(
            (
                meaning(run.cache),
                bits(drafter.observed_taps()),
                bits(drafter.observed_hidden()),
                drafter.observed_positions,
                run.stats.accept_lengths,
            )
        )
    assert seen[0] == seen[1] == seen[2] == seen[3]


def test_prefill_shape_is_mlx_lms() -> None:
    """Body in chunks, then the last token alone; the head sees one prompt row only."""
    counting = CountingBackbone(tiny_target().backbone)
    target = Target(counting, tiny_target().config)
    finish(generation(target=target, prefill_step_size=4, max_tokens=3))
    assert counting.rows == [4, 4, 3, 1, 1, 1]
    assert counting.head_rows == [1, 1, 1]
    assert set(counting.taps) == {()}


@pytest.mark.parametrize("window", [1, 3, 11, 12, 13, 100, None])
@pytest.mark.parametrize("step", [1, 4, 512])
def test_only_the_trailing_window_is_observed(window: int | None, step: int) -> None:
    """A drafter with a window sees the prompt's last rows; chunks before it are not tapped."""
    drafter = ScriptedDrafter(
        all_right(), plain(), len(PROMPT_IDS), tap_ids=(0, 2), context_rows=window
    )
    counting = CountingBackbone(tiny_target().backbone)
    target = Target(counting, tiny_target().config)
    run = generation(target=target, drafter=drafter, prefill_step_size=step, max_tokens=9)
    finish(run)
    total = len(PROMPT_IDS)
    base = 0 if window is None else max(0, total - window)
    assert drafter.reset_positions == [base]
    assert drafter.observed_positions == list(range(base, run.position))
    assert drafter.observed_ids[: total - base] == PROMPT_IDS[base:]
    fed = 0
    for rows, taps in zip(counting.rows, counting.taps, strict=True):
        assert taps == ((0, 2) if fed + rows > base else ())
        fed += rows if fed < total else 0


# --- what the drafter is shown ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_drafter_sees_the_committed_rows_and_no_others(kind: Kind) -> None:
    """Anchor and kept drafts, at their true positions, with the taps of plain decoding."""
    drafter = ScriptedDrafter(mixed(VOCAB, 6), plain(kind), len(PROMPT_IDS), tap_ids=(1, 3))
    run = generation(kind=kind, drafter=drafter, block_size=7)
    finish(run)
    assert len({*run.stats.accept_lengths}) > 4
    committed = [*PROMPT_IDS, *run.emitter.token_ids[:-1]]
    assert drafter.observed_ids == committed
    assert drafter.observed_positions == list(range(len(committed)))
    shown = [int(rows.token_ids.shape[0]) for rows in drafter.observed]
    assert shown == [11, 1, *run.stats.accept_lengths]
    target, cache = tiny_target(kind), tiny_target(kind).make_cache()
    passes = [target.forward_with_taps(mx.array([[token]]), cache, (1, 3)) for token in committed]
    taps = mx.concatenate([result.taps for result in passes if result.taps is not None], axis=1)
    assert bits(drafter.observed_taps()) == bits(taps)
    hidden = mx.concatenate([result.hidden for result in passes], axis=1)
    assert bits(drafter.observed_hidden()) == bits(hidden)


def test_anchor_and_position_of_every_draft() -> None:
    """The anchor is the last emitted token; it sits where the target's cache ends."""
    drafter = ScriptedDrafter(mixed(VOCAB, 3), plain(), len(PROMPT_IDS))
    run = generation(drafter=drafter, block_size=4)
    finish(run)
    emitted = 1
    for anchor, position, accept_length in zip(
        drafter.anchors, drafter.draft_positions, run.stats.accept_lengths, strict=True
    ):
        assert anchor.tolist() == [plain()[emitted - 1]]
        assert position == len(PROMPT_IDS) + emitted - 1
        emitted += accept_length


def test_a_cut_round_is_observed_as_cut() -> None:
    eos = plain()[3]
    drafter = ScriptedDrafter(all_right(), plain(), len(PROMPT_IDS))
    run = generation(drafter=drafter, target=with_eos(tiny_target(), [eos]))
    finish(run)
    assert drafter.observed_ids == [*PROMPT_IDS, *plain()[:3]]
    assert drafter.position == run.position


@pytest.mark.parametrize("gaps", [(1,), (2, 3), (2, 5)])
def test_a_gap_resets_the_drafter_and_changes_no_byte(gaps: tuple[int, ...]) -> None:
    """An empty context at the true position, a counter, the same text."""
    policy = mixed(VOCAB, 4)
    drafter = ScriptedDrafter(policy, plain(), len(PROMPT_IDS), tap_ids=(1,), gap_at_rounds=gaps)
    run = generation(drafter=drafter, block_size=5)
    finish(run)
    assert_cut(run, "hybrid", 30)
    assert run.stats.drafter_resets == len(gaps) == len(drafter.dropped)
    emitted = [1]
    for accept_length in run.stats.accept_lengths:
        emitted.append(emitted[-1] + accept_length)
    positions = [len(PROMPT_IDS) + count - 1 for count in emitted[:-1]]
    assert drafter.draft_positions == positions, "true positions, also after a reset"
    assert drafter.reset_positions == [0, *(positions[gap] for gap in gaps)]
    unbroken = generation(policy, block_size=5)
    finish(unbroken)
    assert unbroken.stats.accept_lengths == run.stats.accept_lengths
    assert unbroken.stats.drafter_resets == 0


def test_the_scripted_drafter_is_a_drafter() -> None:
    assert isinstance(ScriptedDrafter(all_right(), [], 0), Drafter)


def test_one_drafter_serves_request_after_request() -> None:
    """Reset at every prefill: nothing of the last answer is left."""
    drafter = ScriptedDrafter(all_right(), plain(), len(PROMPT_IDS))
    for number in range(3):
        run = generation(drafter=drafter, max_tokens=15)
        finish(run)
        assert run.emitter.token_ids == plain()[:15]
        assert run.stats.drafter_resets == 0 and len(drafter.reset_positions) == number + 1


def test_a_drafter_that_fails_once_drafts_again_next_time() -> None:
    """The error is not swallowed, and one failure disables nothing."""

    class Fault(RuntimeError):
        pass

    def faulty(right: list[int], number: int) -> mx.array:
        if number == 2:
            raise Fault
        return mx.array(right)

    drafter = ScriptedDrafter(faulty, plain(), len(PROMPT_IDS))
    run = generation(drafter=drafter, block_size=4)
    with pytest.raises(Fault):
        list(run)
    fed = [*PROMPT_IDS, *run.emitter.token_ids[:-1]]
    assert len(run.emitter.token_ids) > 4
    assert_as_fed_alone(run.cache, run.target.backbone.model, fed, len(PROMPT_IDS))
    drafter.rounds = 3
    again = generation(drafter=drafter, block_size=4)
    finish(again)
    assert again.emitter.token_ids == plain()[:30] and again.stats.rounds > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [0, 3])
def test_a_cache_that_someone_else_touched_stops_the_run(kind: Kind, index: int) -> None:
    """All layers are asked where they stand before every pass; no token comes of a mix."""
    run = generation(all_right(), kind, block_size=4)
    events = iter(run)
    while run.stats.rounds < 2:
        next(events)
    emitted = list(run.emitter.token_ids)
    run.cache[index].offset -= 1
    with pytest.raises(CacheError, match=f"layer {index} of the cache stands at"):
        next(events)
    assert run.emitter.token_ids == emitted == plain(kind)[: len(emitted)]


# --- clocks, phases, threads, memory ------------------------------------------------------------


@dataclass
class Clock:
    """Each look is one second later; `jump` adds what a test wants to have happened."""

    now: float = 0.0
    looks: int = field(default=0)

    def __call__(self) -> float:
        self.looks += 1
        self.now += 1.0
        return self.now


def test_times_come_from_the_injected_clock() -> None:
    clock = Clock()
    run = generation(mixed(VOCAB, 4), clock=clock, max_tokens=31, block_size=5)
    finish(run)
    stats = run.stats
    assert stats.ttft_sec == 1.0
    assert stats.decode_sec == stats.rounds == 10, "one look a round"
    assert stats.tokens_per_second == stats.tokens_per_round == 3.0
    assert clock.looks == 2 + 1 + stats.rounds and stats.phase_sec == {}
    assert "phase_sec" not in stats.to_dict()


def test_a_slow_first_token_counts_as_ttft_only() -> None:
    clock = Clock()
    run = generation(clock=clock, max_tokens=5)
    for event in run:
        if isinstance(event, PrefillProgress) and event.done == 0:
            clock.now += 100.0
    assert run.stats.ttft_sec == 101.0 and run.stats.decode_sec == 4.0


def test_phases_of_a_profiled_run() -> None:
    """Same ids; every phase is booked once a round; no tok/s is claimed."""
    run = generation(mixed(VOCAB, 4), clock=Clock(), max_tokens=31, block_size=5, profile=True)
    finish(run)
    assert run.emitter.token_ids == plain()[:31]
    phases = run.stats.phase_sec
    assert phases == {"draft": 10.0, "verify": 10.0, "accept": 10.0, "rollback": 10.0}
    assert sum(phases.values()) <= run.stats.decode_sec
    assert run.stats.tokens_per_second is None
    assert run.stats.to_dict()["phase_sec"] == phases


def test_phases_of_a_profiled_plain_run() -> None:
    run = generation(clock=Clock(), max_tokens=5, profile=True)
    finish(run)
    assert run.stats.phase_sec == {"verify": 4.0, "accept": 4.0, "rollback": 4.0}


@pytest.mark.parametrize("profile", [False, True])
def test_a_timed_round_waits_for_the_device_once(
    profile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profiled one waits at every phase, which is why its speed is not quoted."""
    run = generation(mixed(VOCAB, 4), max_tokens=31, block_size=5, profile=profile)
    events = iter(run)
    while not isinstance(next(events), Chunk):
        pass
    waits: list[int] = []
    real = mx.eval

    def counted(*arrays: Any) -> None:
        waits.append(len(arrays))
        real(*arrays)

    monkeypatch.setattr(mx, "eval", counted)
    list(events)
    assert run.stats.rounds == 10
    assert len(waits) == (50 if profile else 10)


def test_runs_in_a_worker_thread_and_in_two_in_turn() -> None:
    """Nothing is bound to the thread that loaded the model."""
    done: dict[str, list[int]] = {}
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            run = generation(mixed(VOCAB, 4), block_size=5)
            list(run)
            done[name] = run.emitter.token_ids
        except BaseException as exc:  # a thread's error would only be printed
            failed.append(exc)

    for name in ("one", "two", "three"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
    work("main")
    assert failed == []
    assert done == dict.fromkeys(("one", "two", "three", "main"), plain()[:30])


def active_bytes() -> int:
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


def test_memory_stays_flat_over_many_requests() -> None:
    """Nothing of a finished request is kept."""

    def request() -> None:
        drafter = ScriptedDrafter(mixed(VOCAB, 4), plain(), len(PROMPT_IDS), tap_ids=(1, 3))
        finish(generation(drafter=drafter, max_tokens=12, block_size=5))

    request()
    before = active_bytes()
    for _ in range(20):
        request()
    one_kv_row_block = 4 * 2 * 256 * 16 * 4
    assert active_bytes() - before < one_kv_row_block, "less than one KV buffer over 20 requests"


def test_memory_comes_back_after_a_consumer_that_failed() -> None:
    """An error in the consumer, then nothing is held."""
    plain()
    before = active_bytes()

    def consume() -> None:
        run = generation(mixed(VOCAB, 4), block_size=5)
        for event in run:
            if isinstance(event, Chunk) and event.accepted:
                raise KeyError("the consumer's own fault")

    with pytest.raises(KeyError):
        consume()
    assert active_bytes() - before < 4096


# --- the bundled pair ---------------------------------------------------------------------------


def test_the_real_pair_streams_the_plain_text(
    bundled_pair: Pair, plain_reference: Callable[[list[int], int], list[int]]
) -> None:
    """ids as stock mlx-lm's; the streamed text is the decoded text, its first indentation too."""
    run = generate(bundled_pair, "def fibonacci(n):\n", GenerateOptions(max_tokens=40, gate=False))
    text = "".join(chunk.text for chunk in finish(run))
    ids = run.emitter.token_ids
    assert ids == plain_reference(run.prompt_ids, 40)
    assert text == bundled_pair.tokenizer.decode(ids) and text.startswith("    ")
    lengths = run.stats.accept_lengths
    assert 1 in lengths and max(lengths) >= 4 and set(lengths) - {1, 7}
