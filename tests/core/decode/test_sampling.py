"""Lossless sampling: exact marginals, planted mistakes found, penalties as in plain decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from dflash_suite.cli.options.sampling import parse_logit_bias
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.sampling import Proposal, accept_or_resample, draw, target_probs
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.errors import OptionError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.pair import Pair
from tests.kit.chance import critical
from tests.kit.decoding import generate
from tests.kit.scripted import ScriptedDrafter, all_right, all_wrong
from tests.kit.tiny import PieceDetokenizer, as_ids, make_target, prompt

VOCAB, DRAFTS, DRAWS = 9, 3, 200_000
TEMPERATURE = 0.6
Judge = Callable[[mx.array, Proposal, mx.array], tuple[mx.array, mx.array]]
KINDS = ("dense", "sparse", "certain")


@functools.cache
def distributions() -> tuple[mx.array, mx.array]:
    """(p (k + 1, vocab), q logits (k, vocab)), far enough apart that all three outcomes happen."""
    mx.random.seed(5)
    options = SamplingOptions(temperature=TEMPERATURE)
    p = target_probs(mx.random.normal((DRAFTS + 1, VOCAB)), options)
    return p, mx.random.normal((DRAFTS, VOCAB))


def proposals(kind: str, key: mx.array) -> Proposal:
    """DRAWS blocks as DFlash and MTP (dense), DFlash2 (sparse, 4 candidates a row) and a greedy
    drafter (certain) propose them, at the temperature."""
    _, logits = distributions()
    if kind == "certain":
        ids = mx.broadcast_to(mx.argmax(logits, axis=-1), (DRAWS, DRAFTS))
        return Proposal(ids)
    candidates = mx.argsort(-logits, axis=-1)[:, : VOCAB if kind == "dense" else 4]
    scores = mx.take_along_axis(logits, candidates, axis=-1) / TEMPERATURE
    probs = mx.broadcast_to(mx.softmax(scores, axis=-1), (DRAWS, *scores.shape))
    chosen = draw(probs, key)[..., None]
    spread = mx.broadcast_to(candidates, probs.shape)
    ids = mx.take_along_axis(spread, chosen, axis=-1)[..., 0]
    if kind == "sparse":
        return Proposal(ids, probs, spread)
    return Proposal(ids, mx.put_along_axis(mx.zeros(probs.shape), spread, probs, axis=-1))


def worst_excess(judge: Judge, kind: str) -> float:
    """The largest chi-square of the emitted ids at any position, over its critical value (one in
    a million); each position is judged over the blocks that got that far."""
    p, _ = distributions()
    proposal = proposals(kind, mx.random.key(1))
    rows = mx.broadcast_to(p, (DRAWS, *p.shape))
    accepted, token = (np.array(part) for part in judge(rows, proposal, mx.random.key(2)))
    drafts, worst = np.array(proposal.ids), 0.0
    assert 0 < (accepted == 0).sum() and 0 < (accepted == DRAFTS).sum() < DRAWS
    for position in range(DRAFTS + 1):
        reached = accepted >= position
        kept = accepted[reached] > position
        at = min(position, DRAFTS - 1)
        ids = np.where(kept, drafts[reached][:, at], token[reached])
        expected = np.array(p[position]) * reached.sum()
        counts = np.bincount(ids, minlength=VOCAB)
        statistic = float(((counts - expected) ** 2 / expected).sum())
        worst = max(worst, statistic / critical(VOCAB - 1))
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_emitted_ids_follow_the_target(kind: str) -> None:
    assert worst_excess(accept_or_resample, kind) < 1


def with_flat_q(probs: mx.array, proposal: Proposal, key: mx.array) -> tuple[mx.array, mx.array]:
    """Mistake 1: q is taken without the temperature that the drafts were drawn at."""
    assert proposal.probs is not None
    flat = proposal.probs**TEMPERATURE
    flat = flat / flat.sum(axis=-1, keepdims=True)
    return accept_or_resample(probs, replace(proposal, probs=flat), key)


def with_raw_residual(
    probs: mx.array, proposal: Proposal, key: mx.array
) -> tuple[mx.array, mx.array]:
    """Mistake 2: the residual is inverted as if it summed to one."""
    accepted, _ = accept_or_resample(probs, proposal, key)
    q = mx.concatenate([proposal.dense(VOCAB), mx.zeros_like(probs[:, :1])], axis=1)
    at = accepted[:, None, None]
    residual = mx.maximum(mx.take_along_axis(probs - q, at, axis=1)[:, 0], 0)
    uniform = mx.random.uniform(shape=(DRAWS, 1), key=mx.random.key(9))
    token = (mx.cumsum(residual, axis=-1) < uniform).sum(axis=-1)
    return accepted, mx.minimum(token, VOCAB - 1)


def with_wrong_bonus(
    probs: mx.array, proposal: Proposal, key: mx.array
) -> tuple[mx.array, mx.array]:
    """Mistake 3: after full acceptance the last draft's row is drawn from again."""
    shifted = mx.concatenate([probs[:, :-1], probs[:, -2:-1]], axis=1)
    return accept_or_resample(shifted, proposal, key)


def with_shared_randomness(
    probs: mx.array, proposal: Proposal, key: mx.array
) -> tuple[mx.array, mx.array]:
    """Mistake 4: no residual at all, the refused row is drawn from anew."""
    accepted, _ = accept_or_resample(probs, proposal, key)
    row = mx.take_along_axis(probs, accepted[:, None, None], axis=1)[:, 0]
    return accepted, draw(row, mx.random.key(11))


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize(
    "mistake", [with_flat_q, with_raw_residual, with_wrong_bonus, with_shared_randomness]
)
def test_the_same_check_finds_planted_mistakes(mistake: Judge, kind: str) -> None:
    assert worst_excess(mistake, kind) > 2


@pytest.mark.parametrize("kind", KINDS[:1])
def test_a_drafter_equal_to_the_target_is_always_accepted(kind: str) -> None:
    p, _ = distributions()
    rows = mx.broadcast_to(p, (2000, *p.shape))
    ids = draw(rows[:, :-1], mx.random.key(3))
    accepted, _ = accept_or_resample(rows, Proposal(ids, rows[:, :-1]), mx.random.key(4))
    assert accepted.min().item() == DRAFTS


def test_illegal_drafts_are_never_accepted() -> None:
    p, _ = distributions()
    for token in (-1, VOCAB, 10**6):
        ids = mx.array([[token] * DRAFTS])
        accepted, chosen = accept_or_resample(p[None], Proposal(ids), mx.random.key(0))
        assert as_ids(accepted) == [0] and as_ids(chosen)[0] in range(VOCAB)


@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.8, "min_p": 0.05}],
)
def test_target_probs_are_what_plain_sampling_draws_from(filters: dict[str, Any]) -> None:
    """Against float64 definitions: filters before the temperature, in mlx-lm's order."""
    mx.random.seed(8)
    logits = mx.random.normal((4, 12)) * 2
    options = SamplingOptions(temperature=TEMPERATURE, **filters)
    found = np.array(target_probs(logits, options))
    for row, probs in zip(np.array(logits, dtype=np.float64), found, strict=True):
        raw = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        order, keep = np.argsort(-raw), np.ones(len(raw), bool)
        above = np.cumsum(raw[order]) - raw[order]
        keep[order[above >= options.top_p]] = False
        keep &= raw >= options.min_p * raw.max()
        if options.top_k:
            kept = [token for token in order if keep[token]][: options.top_k]
            keep = np.isin(np.arange(len(raw)), kept)
        scaled = np.where(keep, raw ** (1 / TEMPERATURE), 0)
        np.testing.assert_allclose(probs, scaled / scaled.sum(), atol=1e-5)
        assert (probs > 0).sum() == keep.sum()


PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7, "penalty_window": 8},
    {"logit_bias": ((422, -100.0), (263, -2.0))},
    {"repetition_penalty": 1.2, "logit_bias": ((11, 4.0),), "penalty_window": 40},
]


@functools.cache
def tiny() -> Target:
    return make_target("hybrid")


def stock_with_penalties(model: Any, ids: Sequence[int], options: SamplingOptions) -> list[int]:
    """mlx-lm's own plain decoding with its own processors."""
    window = options.penalty_window
    processors = make_logits_processors(
        logit_bias=dict(options.logit_bias) or None,
        repetition_penalty=options.repetition_penalty if options.repetition_penalty != 1 else None,
        repetition_context_size=window,
        presence_penalty=options.presence_penalty or None,
        presence_context_size=window,
        frequency_penalty=options.frequency_penalty or None,
        frequency_context_size=window,
    )
    steps = generate_step(mx.array(list(ids)), model, max_tokens=20, logits_processors=processors)
    return [int(token) for token, _ in steps]


@pytest.fixture(scope="module")
def bare(bundled_pair: Pair) -> list[int]:
    """What the bundled target says without penalties."""
    ids = bundled_pair.tokenizer.encode("def fibonacci(n):\n")
    return stock_with_penalties(bundled_pair.target.backbone.model, ids, SamplingOptions())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("penalties", PENALTIES, ids=lambda chosen: "+".join(chosen))
def test_greedy_ids_under_penalties_are_plain_ids(
    penalties: dict[str, Any], bundled_pair: Pair, bare: list[int]
) -> None:
    """On real text, which repeats itself, so that every penalty has something to act on."""
    target, sampling = bundled_pair.target, SamplingOptions(**penalties)
    ids = bundled_pair.tokenizer.encode("def fibonacci(n):\n")
    stock = stock_with_penalties(target.backbone.model, ids, sampling)
    assert stock != bare, "the penalties changed nothing, so nothing is shown"
    assert not set(stock) & set(target.config.eos_ids)
    options = GenerateOptions(max_tokens=20, gate=False, sampling=sampling)
    seen = set()
    for policy in (None, all_right(), all_wrong(target.config.vocab_size)):
        drafter = None if policy is None else ScriptedDrafter(policy, stock, len(ids), 4)
        run = Generation(target, ids, PieceDetokenizer(None), drafter=drafter, options=options)
        assert sum(1 for _ in run) > 0
        assert run.emitter.token_ids == stock
        seen.add((run.stats.rounds > 0, run.stats.accepted > 0))
    assert seen == {(False, False), (True, True), (True, False)}


def test_processors_see_what_plain_decoding_shows_them() -> None:
    """Each record is a prefix of prompt and output, whatever was drafted and refused."""
    records: list[list[int]] = []

    def recorder(tokens: mx.array, logits: mx.array) -> mx.array:
        records.append([int(token) for token in np.array(tokens)])
        return logits

    ids = prompt(12)
    continuation = stock_with_penalties(tiny().backbone.model, ids, SamplingOptions())
    run = Generation(
        tiny(),
        ids,
        PieceDetokenizer(None),
        drafter=ScriptedDrafter(all_right(), continuation, len(ids)),
        options=GenerateOptions(max_tokens=20, gate=False),
        setup=Setup(processors=[recorder]),
    )
    assert sum(1 for _ in run) > 0
    whole = [*ids, *continuation]
    assert run.stats.accepted > 0 and len(records) > 5
    assert all(record == whole[: len(record)] for record in records)


def test_a_forbidden_token_that_the_drafter_loves_is_never_emitted(bundled_pair: Pair) -> None:
    """The verdict is on processed logits, for greedy decoding and for sampling."""
    ids = bundled_pair.tokenizer.encode("def f(x):\n    return")
    loved = next(iter(plain_ids(bundled_pair, ids, SamplingOptions())))
    bias = ((loved, -100.0),)
    for sampling in (
        SamplingOptions(logit_bias=bias),
        SamplingOptions(temperature=0.8, seed=4, logit_bias=bias),
    ):
        options = GenerateOptions(max_tokens=16, block_size=4, gate=False, sampling=sampling)
        run = generate(bundled_pair, ids, options)
        assert sum(1 for _ in run) > 0
        assert run.stats.rounds > 0 and loved not in run.emitter.token_ids


def plain_ids(pair: Pair, ids: Sequence[int], sampling: SamplingOptions) -> list[int]:
    run = generate(
        replace(pair, drafter=None, reserve=None),
        ids,
        GenerateOptions(max_tokens=1, sampling=sampling),
    )
    assert sum(1 for _ in run) > 0
    return run.emitter.token_ids


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "mtp"])
def test_a_seed_repeats_exactly(
    kind: str, bundled_pairs: dict[str, Pair], bundled_mtp: MtpDrafter
) -> None:
    """The gate, which looks at the clock, is off then. Other seeds give other texts."""
    pair = bundled_pairs["dflash2" if kind == "mtp" else kind]
    pair = replace(pair, drafter=bundled_mtp) if kind == "mtp" else pair
    ids, found = pair.tokenizer.encode("def fibonacci(n):\n"), []
    for seed in (3, 3, 4):
        sampling = SamplingOptions(temperature=1.0, top_k=50, seed=seed)
        run = generate(pair, ids, GenerateOptions(max_tokens=16, sampling=sampling))
        assert sum(1 for _ in run) > 0
        assert run.stats.plain_steps == 0 and 0 < run.stats.accepted < run.stats.drafted
        found.append(run.emitter.token_ids)
    assert found[0] == found[1] != found[2]


def test_greedy_is_the_default_and_draws_nothing() -> None:
    run = Generation(tiny(), prompt(5), PieceDetokenizer(None))
    assert run.chooser.draws is None and SamplingOptions().greedy
    assert GenerateOptions(sampling=SamplingOptions(temperature=1.0)).gated
    assert not GenerateOptions(sampling=SamplingOptions(temperature=1.0, seed=0)).gated
    assert GenerateOptions(sampling=SamplingOptions(seed=0)).gated  # greedy repeats by itself


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 2.0},
        {"seed": -1},
        {"seed": 2**64},
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
        {"penalty_window": 0},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, float("nan")),)},
    ],
    ids=str,
)
def test_values_that_no_run_could_use(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        SamplingOptions(**wrong)


def test_logit_bias_texts() -> None:
    assert parse_logit_bias(["42:-5", "0:1.5"]) == ((42, -5.0), (0, 1.5))
    assert parse_logit_bias(None) == ()
    for text in ("42", "x:1", "1:y", ":", ""):
        with pytest.raises(OptionError, match="of the form ID:X"):
            parse_logit_bias([text])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-39},
        {"temperature": 1e-320},
        {"temperature": 1e-8},
        {"temperature": 1.0, "top_p": 1e-320},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1e-39, "top_p": 1e-320, "min_p": 1.0, "top_k": 1},
    ],
    ids=str,
)
def test_the_smallest_numbers_leave_the_likeliest_token(options: dict[str, Any]) -> None:
    """It was the last id of the vocabulary for ever: NaN probabilities."""
    mx.random.seed(3)
    logits = mx.random.normal((4, 2000)) * 10
    probs = target_probs(logits, SamplingOptions(**options))
    assert mx.array_equal(probs.argmax(axis=-1), logits.argmax(axis=-1))
    assert mx.array_equal(probs.max(axis=-1), mx.ones(4))
    assert mx.array_equal(probs.sum(axis=-1), mx.ones(4))


@pytest.mark.parametrize("temperature", [2e-7, 1e-5, 0.01, 5.0, 1e30])
def test_any_temperature_gives_a_distribution(temperature: float) -> None:
    probs = target_probs(mx.random.normal((4, 2000)) * 10, SamplingOptions(temperature=temperature))
    assert mx.isfinite(probs).all() and mx.allclose(probs.sum(axis=-1), mx.ones(4), atol=1e-5)


@pytest.mark.parametrize("window", [2**31, 2**32, 10**12])
def test_a_window_beyond_32_bits_is_all_of_the_text(window: int) -> None:
    """It was a traceback of MLX's."""
    target, ids = make_target("dense"), prompt(9)
    found = []
    for some in (window, 1000):
        sampling = SamplingOptions(repetition_penalty=1.3, penalty_window=some)
        options = GenerateOptions(max_tokens=8, sampling=sampling)
        run = Generation(target, ids, PieceDetokenizer(None), options=options)
        assert sum(1 for _ in run) > 0
        found.append(run.emitter.token_ids)
    assert found[0] == found[1]
