"""No draft, however bad, changes a byte: ids and caches, for scripted drafters on tiny targets.

The reference is stock mlx-lm: its generate_step for the ids, its forward over the kept tokens
alone for the caches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.stats import Chunk
from dflash_suite.core.target.target import Target
from tests.kit.scripted import (
    Policy,
    ScriptedDrafter,
    all_right,
    all_wrong,
    constant,
    mixed,
    nan_scores,
    random_ids,
    wrong_at,
)
from tests.kit.snapshots import assert_as_fed_alone
from tests.kit.tiny import (
    VOCAB,
    CountingBackbone,
    Kind,
    PieceDetokenizer,
    Precision,
    as_ids,
    assert_varied,
    make_target,
    prompt,
    stock_greedy,
)

TOKENS = 24
MASK_ID = 3
RECORDED = 60
"""Ids of the recorded continuation; more than a run emits, for the last block's drafts."""


@dataclass(frozen=True)
class Subject:
    """A tiny target, a prompt, and what stock mlx-lm makes of it."""

    target: Target
    prompt_ids: list[int]
    plain: list[int]

    @property
    def model(self) -> Any:
        return self.target.backbone.model


@functools.cache
def subject(kind: Kind, precision: Precision) -> Subject:
    target = make_target(kind, precision)
    prompt_ids = prompt(12)
    plain = stock_greedy(target.backbone.model, prompt_ids, RECORDED)
    assert_varied(plain)
    return Subject(target, prompt_ids, plain)


SUBJECTS: list[tuple[Kind, Precision]] = [
    ("hybrid", "float32"),
    ("hybrid", "bfloat16"),
    ("hybrid", "4bit"),
    ("dense", "float32"),
    ("dense", "bfloat16"),
    ("llama", "4bit"),
]


@dataclass(frozen=True)
class Run:
    """One finished run and what was counted beside it."""

    generation: Generation
    drafter: ScriptedDrafter
    chunks: list[Chunk]
    forward_rows: list[int]


def run(
    on: Subject, policy: Policy, block_size: int, max_tokens: int = TOKENS, **settings: Any
) -> Run:
    drafter = ScriptedDrafter(policy, on.plain, len(on.prompt_ids), **settings)
    counting = CountingBackbone(on.target.backbone)
    generation = Generation(
        Target(counting, on.target.config),
        on.prompt_ids,
        PieceDetokenizer(),
        drafter=drafter,
        options=GenerateOptions(max_tokens=max_tokens, block_size=block_size, gate=False),
    )
    chunks = [event for event in generation if isinstance(event, Chunk)]
    return Run(generation, drafter, chunks, counting.rows)


def expected_rounds(
    on: Subject, policy: Policy, block_size: int, max_tokens: int = TOKENS
) -> list[tuple[int, int]]:
    """(drafts, right ones) of each round, worked out on paper: no model, no loop under test."""
    emitted = 1
    rounds: list[tuple[int, int]] = []
    while emitted < max_tokens:
        count = min(block_size - 1, max_tokens - emitted)
        right = on.plain[emitted : emitted + count]
        drafts = as_ids(policy(right, len(rounds)))
        accepted = 0
        while accepted < count and drafts[accepted] == right[accepted]:
            accepted += 1
        rounds.append((count, accepted))
        emitted += min(accepted + 1, max_tokens - emitted)
    return rounds


def outcomes(rounds: Sequence[tuple[int, int]]) -> set[str]:
    """Which of full, partial and zero acceptance occurred."""
    return {
        "zero" if accepted == 0 else "full" if accepted == count else "partial"
        for count, accepted in rounds
    }


def assert_identical(result: Run, on: Subject, max_tokens: int = TOKENS) -> None:
    """ids as stock mlx-lm's, caches as fed with the kept tokens alone, one forward a round."""
    generation = result.generation
    ids = generation.emitter.token_ids
    assert ids == on.plain[:max_tokens]
    fed = [*on.prompt_ids, *ids[:-1]]
    assert generation.position == len(fed) == len(on.prompt_ids) + len(ids) - 1
    assert_as_fed_alone(generation.cache, on.model, fed, len(on.prompt_ids))
    prefill, rounds = result.forward_rows[:2], result.forward_rows[2:]
    assert prefill == [len(on.prompt_ids) - 1, 1]
    assert rounds == [count + 1 for count in result.drafter.draft_counts]


def assert_policy(
    on: Subject, policy: Policy, block_size: int, must_occur: set[str], **settings: Any
) -> Run:
    """Run `policy`; ids, caches, forwards and acceptance must all be those of the paper."""
    result = run(on, policy, block_size, **settings)
    assert_identical(result, on)
    expected = expected_rounds(on, policy, block_size)
    stats = result.generation.stats
    assert stats.rounds == len(expected) == result.drafter.rounds > 0
    assert stats.target_passes == stats.rounds and stats.plain_steps == 0
    room = TOKENS - 1
    for (_, accepted), accept_length in zip(expected, stats.accept_lengths, strict=True):
        assert accept_length == min(accepted + 1, room)
        room -= accept_length
    assert must_occur <= outcomes(expected), f"vacuous: {outcomes(expected)}"
    return result


POLICIES: dict[str, tuple[Callable[[int], Policy], set[str]]] = {
    "all right": (lambda drafts: all_right(), {"full"}),
    "all wrong": (lambda drafts: all_wrong(VOCAB), {"zero"}),
    "mixed": (lambda drafts: mixed(VOCAB, drafts), {"full", "zero"}),
    "random": (lambda drafts: random_ids(5, VOCAB), {"zero"}),
    "NaN scores": (lambda drafts: nan_scores(VOCAB), {"zero"}),
}


def cases() -> list[tuple[Kind, Precision, str, int]]:
    """Everything on the float32 hybrid; the telling policies and blocks on the others."""
    every: list[tuple[Kind, Precision, str, int]] = [
        ("hybrid", "float32", name, block) for name in POLICIES for block in (2, 3, 5, 8)
    ]
    for kind, precision in SUBJECTS[1:]:
        every += [
            (kind, precision, name, block)
            for name in ("all right", "mixed", "NaN scores")
            for block in (3, 7)
        ]
    return every


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("kind", "precision", "name", "block_size"), cases())
def test_any_draft_leaves_ids_and_caches_alone(
    kind: Kind, precision: Precision, name: str, block_size: int
) -> None:
    make, must_occur = POLICIES[name]
    if name == "mixed" and block_size > 2:
        must_occur = must_occur | {"partial"}
    assert_policy(subject(kind, precision), make(block_size - 1), block_size, must_occur)


@pytest.mark.parametrize(
    ("kind", "block_size"), [*(("hybrid", block) for block in range(2, 9)), ("dense", 8)]
)
def test_an_error_planted_at_each_position(kind: Kind, block_size: int) -> None:
    for position in range(block_size - 1):
        result = assert_policy(
            subject(kind, "float32"),
            wrong_at(position, VOCAB),
            block_size,
            {"partial"} if position else {"zero"},
        )
        lengths = result.generation.stats.accept_lengths
        assert set(lengths[:-1]) == {position + 1}


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_taps_are_carried_and_change_nothing(kind: Kind) -> None:
    """The tap path runs in every pass: two layers, the last one among them."""
    policy = mixed(VOCAB, 5)
    result = assert_policy(
        subject(kind, "float32"), policy, 6, {"full", "partial", "zero"}, tap_ids=(1, 3)
    )
    assert result.drafter.observed_taps().shape[1] == len(result.drafter.observed_ids)


def test_illegal_drafts_are_fed_as_legal_ids() -> None:
    """No row of any forward embeds an id outside the vocabulary."""
    on = subject("hybrid", "float32")
    for token in (-1, VOCAB, 2**31 - 1):
        counting = CountingBackbone(on.target.backbone)
        drafter = ScriptedDrafter(constant(token), on.plain, len(on.prompt_ids))
        generation = Generation(
            Target(counting, on.target.config),
            on.prompt_ids,
            PieceDetokenizer(),
            drafter=drafter,
            options=GenerateOptions(max_tokens=10, gate=False),
        )
        list(generation)
        fed = [token for ids in counting.embedded for token in as_ids(ids[0])]
        assert len(fed) > 40
        assert min(fed) >= 0 and max(fed) < VOCAB


ILLEGAL = {
    "-1": -1,
    "vocab": VOCAB,
    "far outside": 2**31 - 1,
    "far below": -(2**31),
    "mask": MASK_ID,
    "eos": 0,
}


@pytest.mark.parametrize("token", ILLEGAL.values(), ids=ILLEGAL.keys())
@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_illegal_draft_ids_are_never_accepted(kind: Kind, token: int) -> None:
    """At the first and the last position; the target itself never says them."""
    on = subject(kind, "float32")
    assert token not in on.plain
    for position in (0, 3):
        result = assert_policy(
            on, constant(token, position), 5, {"partial"} if position else {"zero"}
        )
        ids = [token for chunk in result.chunks for token in chunk.token_ids]
        assert token not in ids


def test_a_drafted_eos_does_not_end_the_answer() -> None:
    """Only the target's own eos does; here it is an id that the target never says."""
    on = subject("hybrid", "float32")
    never = next(token for token in range(VOCAB) if token not in on.plain)
    config = make_target("hybrid", eos_ids=(never,)).config
    drafter = ScriptedDrafter(constant(never, 2), on.plain, len(on.prompt_ids))
    generation = Generation(
        Target(on.target.backbone, config),
        on.prompt_ids,
        PieceDetokenizer(),
        drafter=drafter,
        options=GenerateOptions(max_tokens=TOKENS, gate=False),
    )
    list(generation)
    assert generation.emitter.token_ids == on.plain[:TOKENS]
    assert generation.emitter.reason == "length"


@pytest.mark.parametrize(("kind", "precision"), SUBJECTS)
def test_plain_decoding_is_stock_decoding(kind: Kind, precision: Precision) -> None:
    on = subject(kind, precision)
    generation = Generation(
        on.target,
        on.prompt_ids,
        PieceDetokenizer(),
        options=GenerateOptions(max_tokens=TOKENS, gate=False),
    )
    list(generation)
    assert generation.emitter.token_ids == on.plain[:TOKENS]
    fed = [*on.prompt_ids, *on.plain[: TOKENS - 1]]
    assert_as_fed_alone(generation.cache, on.model, fed, len(on.prompt_ids))


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_closing_between_any_two_events_leaves_whole_caches(kind: Kind) -> None:
    """As after the tokens emitted so far, wherever the consumer stops."""
    on = subject(kind, "float32")
    stopped = 0
    for after in range(1, 9):
        drafter = ScriptedDrafter(mixed(VOCAB, 3), on.plain, len(on.prompt_ids))
        generation = Generation(
            on.target,
            on.prompt_ids,
            PieceDetokenizer(),
            drafter=drafter,
            options=GenerateOptions(max_tokens=TOKENS, block_size=4, gate=False),
        )
        events = iter(generation)
        seen: list[Chunk] = []
        while len(seen) < after:
            event = next(events)
            if isinstance(event, Chunk):
                seen.append(event)
        assert hasattr(events, "close")
        events.close()
        ids = [token for chunk in seen for token in chunk.token_ids]
        assert ids == generation.emitter.token_ids == on.plain[: len(ids)]
        fed = [*on.prompt_ids, *ids[:-1]]
        assert_as_fed_alone(generation.cache, on.model, fed, len(on.prompt_ids))
        assert generation.emitter.reason is None
        stopped += generation.stats.rounds > 0
    assert stopped >= 7


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_prompts_shorter_than_the_convolution_kernel(kind: Kind, length: int) -> None:
    """A prompt of one token has no body; the window is still filling during the rounds."""
    target = subject(kind, "float32").target
    prompt_ids = prompt(length, seed=9)
    plain = stock_greedy(target.backbone.model, prompt_ids, 40)
    on = Subject(target, prompt_ids, plain)
    result = run(on, mixed(VOCAB, 5), 6, max_tokens=24, tap_ids=(0, 2))
    assert result.generation.emitter.token_ids == plain[:24]
    assert outcomes(expected_rounds(on, mixed(VOCAB, 5), 6, 24)) == {"zero", "partial", "full"}
    fed = [*prompt_ids, *plain[:23]]
    assert_as_fed_alone(result.generation.cache, on.model, fed, length)


def test_a_run_longer_than_the_kv_buffers_first_step() -> None:
    """mlx-lm's KV cache grows by 256 rows: across that border rollbacks still trim right."""
    target = subject("hybrid", "float32").target
    prompt_ids = prompt(240, seed=4)
    plain = stock_greedy(target.backbone.model, prompt_ids, 60)
    on = Subject(target, prompt_ids, plain)
    result = run(on, mixed(VOCAB, 7), 8, max_tokens=40)
    assert result.generation.emitter.token_ids == plain[:40]
    assert result.generation.position > 256
    assert_as_fed_alone(result.generation.cache, on.model, [*prompt_ids, *plain[:39]], 240)


def test_the_bundled_target_with_scripted_drafts(bundled_target: LoadedTarget) -> None:
    """Eight layers, tied head, real text."""
    target = bundled_target.target
    prompt_ids = bundled_target.tokenizer.encode("def fibonacci(n):\n")
    plain = stock_greedy(target.backbone.model, prompt_ids, 40)
    assert len(set(plain)) > 20
    on = Subject(target, prompt_ids, plain)
    result = run(on, mixed(4096, 6), 7, max_tokens=28, tap_ids=(1, 3, 5, 7))
    assert result.generation.emitter.token_ids == plain[:28]
    assert outcomes(expected_rounds(on, mixed(4096, 6), 7, 28)) == {"zero", "partial", "full"}
    assert_as_fed_alone(result.generation.cache, on.model, [*prompt_ids, *plain[:27]], 8)


def test_a_broken_rollback_would_be_seen() -> None:
    """The comparison of caches is not vacuous: one row too many, and it fails."""
    on = subject("hybrid", "float32")
    result = run(on, all_wrong(VOCAB), 4, max_tokens=10)
    on.target.forward_with_taps(mx.array([[1]]), result.generation.cache)
    fed = [*on.prompt_ids, *on.plain[:9], 2]
    with pytest.raises(AssertionError, match="layer 0"):
        assert_as_fed_alone(result.generation.cache, on.model, fed, len(on.prompt_ids))
