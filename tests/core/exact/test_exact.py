"""Every mode gives the same ids where the target runs by a plan, also on a device whose rows depend
on their pass: such devices are planted here, and the plans found by measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.block import Block, limit_block
from dflash_suite.core.cache.fixed import FixedKVCache
from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.errors import CacheError, ExactUnavailable, OptionError, RollbackError
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget, exact_width, find_plan
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.pair import Pair
from dflash_suite.drafters.request import Request
from tests.kit.families import CONFIGS, SLIDING, load_family, save_family
from tests.kit.planted import Fault, Rescaled, plant, planted_target
from tests.kit.scripted import ScriptedDrafter, mixed
from tests.kit.snapshots import bits, meaning, whole
from tests.kit.tiny import (
    VOCAB,
    CountingBackbone,
    Kind,
    PieceDetokenizer,
    Precision,
    assert_varied,
    make_target,
    prompt,
    stock_greedy,
)
from tests.kit.tiny_drafter import make_drafter
from tests.kit.tiny_mtp import tiny_head

PROMPT_TOKENS, NEW_TOKENS = 20, 32
LLAMA_SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 12,
}
KINDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "hybrid": ("hybrid", {}),
    "dense": ("dense", {}),
    "sliding": ("llama", LLAMA_SLIDING),
}
PADDED = ExactPlan(8, pads=True)


def decode(target: Target, drafter: Drafter | None = None, **options: Any) -> Generation:
    """A finished request of the tests' one prompt."""
    run = Generation(
        target,
        prompt(PROMPT_TOKENS),
        PieceDetokenizer(),
        drafter=drafter,
        options=GenerateOptions(**{"max_tokens": NEW_TOKENS, "gate": False, **options}),
    )
    list(run)
    return run


def scripted(continuation: list[int], block: int) -> ScriptedDrafter:
    """Every acceptance from none to all, in turn."""
    return ScriptedDrafter(mixed(VOCAB, block - 1), continuation, PROMPT_TOKENS, 16, tap_ids=(0, 3))


def speculative(target: Target, plain: list[int], blocks: Iterator[int] | range) -> None:
    """The ids at each block are the plain ones, with drafts kept and refused on the way."""
    for block in blocks:
        run = decode(target, scripted(plain, block), block_size=block)
        assert run.emitter.token_ids == plain, f"block {block}"
        assert run.stats.rounds > 5 and 0 < run.stats.accepted < run.stats.drafted


# --- the plan that a device needs ----------------------------------------------------------------

NEEDED: list[tuple[Fault | None, str, ExactPlan]] = [
    (None, "hybrid", ExactPlan(16, pads=False)),
    (None, "dense", ExactPlan(16, pads=False)),
    (None, "sliding", ExactPlan(16, pads=False, fixes_keys=True)),
    ("keys", "hybrid", ExactPlan(16, pads=False, fixes_keys=True)),
    ("keys", "dense", ExactPlan(16, pads=False, fixes_keys=True)),
    ("keys", "sliding", ExactPlan(16, pads=False, fixes_keys=True)),
    ("width", "hybrid", PADDED),
    ("width", "dense", PADDED),
    ("width and keys", "hybrid", PADDED),
    ("width and keys", "sliding", PADDED),
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("fault", "name", "plan"), NEEDED, ids=str)
def test_the_cheapest_plan_that_is_exact_and_its_ids(
    fault: Fault | None, name: str, plan: ExactPlan
) -> None:
    """What CUDA does: a row follows the width, attention the number of keys. Left alone, the modes
    differ; by the plan they are the same at every block."""
    kind, changes = KINDS[name]
    target = planted_target(fault, kind, **changes) if fault else make_target(kind, **changes)
    found = find_plan(target, contexts=(PROMPT_TOKENS, 250), tokens=10)
    assert (found.width, found.pads, found.fixes_keys) == (plan.width, plan.pads, plan.fixes_keys)
    assert found.checked == "run" and len(found.date) == len("2026-11-29")
    exact = ExactTarget(target, found)
    plain = decode(exact).emitter.token_ids
    assert_varied(plain, within=NEW_TOKENS)
    every = (fault, name) == ("width and keys", "hybrid")
    speculative(exact, plain, range(2, found.width + 1, 1 if every else 3))
    if fault is not None and "width" in fault:
        loose = decode(target).emitter.token_ids
        runs = (decode(target, scripted(loose, block), block_size=block) for block in (8, 7, 5, 3))
        assert any(run.emitter.token_ids != loose for run in runs)


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize("fault", ["neighbour", "place"])
def test_where_no_plan_is_exact_it_is_refused(kind: Kind, fault: Fault) -> None:
    target = planted_target(fault, kind)
    with pytest.raises(ExactUnavailable) as caught:
        find_plan(target, contexts=(9,), tokens=8)
    message = str(caught.value)
    for width in (4, 8, 16):
        assert f"every pass at {width} rows: " in message
    assert "rows differ at width 2 and 9 tokens of context, by up to" in message
    assert "without --exact" in message


def beyond(most: int, neighbours: bool) -> Target:
    """A target whose logits follow the width, or the last row, in passes of more than `most`."""
    target = make_target()

    def factor(out: mx.array) -> mx.array:
        extra = max(0, out.shape[1] - most)
        seen = mx.tanh(out[:, -1:]) if neighbours else mx.arange(out.shape[-1]) % 2
        return 1 + extra / 50 * seen

    target.backbone.text.lm_head = Rescaled(target.backbone.text.lm_head, factor)
    return target


def test_the_widest_exact_block() -> None:
    plan = ExactPlan(16, pads=False)
    found = exact_width(ExactTarget(beyond(5, neighbours=True), plan), plan, (9,), 8)
    assert found.width == 5
    assert found.problem is not None and found.problem.width == 6


@pytest.mark.parametrize(
    ("most", "neighbours", "width", "pads"),
    [
        (5, False, 8, True),  # the block wanted comes before what is free
        (5, True, 5, False),  # padding to 4 rows would give less
        (4, True, 4, False),
        (3, True, 3, False),
        (9, True, 9, False),
    ],
)
def test_what_is_exact_for_narrow_blocks(
    most: int, neighbours: bool, width: int, pads: bool
) -> None:
    plan = find_plan(beyond(most, neighbours), contexts=(9,), tokens=8)
    assert (plan.width, plan.pads, plan.fixes_keys) == (width, pads, False)


def late_target(monkeypatch: pytest.MonkeyPatch, after: int) -> Target:
    """Rows see their neighbour in passes that begin beyond `after` tokens."""
    target = make_target("dense")
    inner = target.backbone.layers[0].mlp
    late = [False]

    class Late(type(inner)):  # type: ignore[misc]
        def __call__(self, x: mx.array) -> mx.array:
            out: mx.array = super().__call__(x)
            return out + x[:, -1:] if late[0] else out

    inner.__class__ = Late
    run = target.backbone.run

    def watched(token_ids: mx.array, cache: Any, *rest: Any) -> Any:
        late[0] = cache[0].offset > after
        return run(token_ids, cache, *rest)

    monkeypatch.setattr(target.backbone, "run", watched)
    return target


def test_a_plan_that_fails_behind_a_long_context_is_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = late_target(monkeypatch, after=100)
    assert find_plan(target, contexts=(16,), tokens=8).width == 16
    with pytest.raises(ExactUnavailable, match="120 tokens of context"):
        find_plan(target, contexts=(16, 120), tokens=8)


def test_the_whole_text_is_decoded_and_not_its_first_block_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ExactUnavailable, match="rows differ at width 16 and 16 tokens"):
        find_plan(late_target(monkeypatch, after=20), contexts=(16,), tokens=16)


def test_a_window_that_the_check_does_not_reach_is_not_called_exact() -> None:
    """As long as the ring has not wrapped, its keys stand in order."""
    changes = {**LLAMA_SLIDING, "sliding_window": 64}
    plan = find_plan(make_target("llama", **changes), contexts=(9,), tokens=8)
    assert plan.fixes_keys


# --- the same ids, whatever runs -----------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize(
    ("precision", "width"),
    [("float32", 4), ("float32", 8), ("float32", 16), ("bfloat16", 8), ("4bit", 16)],
)
def test_padded_passes_give_the_same_ids(name: str, precision: Precision, width: int) -> None:
    kind, changes = KINDS[name]
    target = ExactTarget(make_target(kind, precision, **changes), ExactPlan(width, pads=True))
    plain = decode(target)
    assert_varied(plain.emitter.token_ids, within=NEW_TOKENS)
    speculative(target, plain.emitter.token_ids, range(2, width + 1, width // 2))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("plan", "precision"),
    [
        (PADDED, "float32"),
        (PADDED, "bfloat16"),
        (PADDED, "4bit"),
        (ExactPlan(16, False), "float32"),
    ],
    ids=["padded", "padded bfloat16", "padded 4bit", "as it is"],
)
def test_every_drafter_gives_the_same_ids(
    plan: ExactPlan, precision: Precision, tmp_path: Path
) -> None:
    """Of which random ones are refused almost always, and change nothing else either."""
    head = tiny_head(tmp_path / "target")[1]
    target = ExactTarget(make_target("hybrid", precision), plan)
    plain = decode(target).emitter.token_ids
    names: tuple[DrafterKind, ...] = ("dflash", "dflash2")
    for name in names:
        drafter = make_drafter(tmp_path / name, name, block_size=8)
        run = decode(target, drafter, block_size=8)
        assert run.emitter.token_ids == plain and run.stats.rounds > 5
    for draft_tokens in (1, 6):
        run = decode(target, head, draft_tokens=draft_tokens)
        assert run.emitter.token_ids == plain and run.stats.rounds > 5


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_family_has_a_plan_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Mixtures of experts and sliding layers included; what slides needs a fixed number of keys,
    because a ring's keys stand in another order."""
    target = load_family(save_family(tmp_path, name)).target
    plan = find_plan(target, contexts=(PROMPT_TOKENS,), tokens=8)
    assert (plan.pads, plan.fixes_keys) == (False, name in SLIDING)
    for used in (plan, ExactPlan(4, pads=True)):
        exact = ExactTarget(target, used)
        speculative(exact, decode(exact).emitter.token_ids, range(4, 5))


def test_the_cache_has_room_for_the_whole_request() -> None:
    target = ExactTarget(make_target(), PADDED)
    options = GenerateOptions(max_tokens=300)
    run = Generation(target, prompt(20), PieceDetokenizer(), options=options)
    assert [one.capacity for one in run.cache if isinstance(one, FixedKVCache)] == [512]


def test_the_gate_and_a_cut_answer_change_nothing() -> None:
    target = ExactTarget(planted_target("width and keys"), PADDED)
    plain = decode(target).emitter.token_ids
    gated = decode(target, scripted(plain, 6), block_size=6, gate=True)
    assert gated.emitter.token_ids == plain
    short = decode(target, scripted(plain, 6), block_size=6, max_tokens=NEW_TOKENS - 3)
    assert short.emitter.token_ids == plain[: NEW_TOKENS - 3]


def test_the_caches_are_those_of_plain_decoding() -> None:
    for name, (kind, changes) in KINDS.items():
        target = ExactTarget(plant(make_target(kind, **changes), "width and keys"), PADDED)
        plain = decode(target)
        run = decode(target, scripted(plain.emitter.token_ids, 5), block_size=5)
        assert run.position == plain.position == PROMPT_TOKENS + NEW_TOKENS - 1
        assert meaning(run.cache) == meaning(plain.cache), name


def test_without_padding_the_cpu_stays_mlx_lm_s_own() -> None:
    target = make_target()
    exact = ExactTarget(target, find_plan(target, contexts=(9,), tokens=8))
    ids = decode(exact).emitter.token_ids
    assert ids == stock_greedy(target.backbone.model, prompt(PROMPT_TOKENS), NEW_TOKENS)


# --- what a padded pass is -----------------------------------------------------------------------


@pytest.mark.parametrize("block", [None, 3])
def test_every_pass_and_every_head_has_the_width(block: int | None) -> None:
    inner = make_target()
    counting = CountingBackbone(inner.backbone)
    target = ExactTarget(Target(counting, inner.config), PADDED)
    plain = stock_greedy(inner.backbone.model, prompt(PROMPT_TOKENS), NEW_TOKENS)
    drafter = None if block is None else scripted(plain, block)
    run = decode(target, drafter, block_size=block)
    assert counting.rows[:2] == [PROMPT_TOKENS - 1, 1], "the prompt runs as it always does"
    assert set(counting.rows[2:]) == {8} and len(counting.rows) == run.stats.target_passes + 2
    assert set(counting.head_rows) == {8}
    assert not run.pipelined and any(isinstance(one, FixedKVCache) for one in run.cache)


def test_no_pass_is_queued_ahead() -> None:
    target = ExactTarget(make_target(), PADDED)
    run = Generation(target, prompt(5), PieceDetokenizer(), setup=Setup(pipelined=True))
    assert not run.pipelined
    assert Generation(
        make_target(), prompt(5), PieceDetokenizer(), setup=Setup(pipelined=True)
    ).pipelined


def test_the_caller_never_sees_the_padding() -> None:
    for kind in ("hybrid", "dense"):
        target = ExactTarget(make_target("hybrid" if kind == "hybrid" else "dense"), PADDED)
        cache = target.make_cache(40)
        target.forward_with_taps(mx.array([prompt(9)]), cache)
        result = target.verify_rows(mx.array([[1, 2, 3]]), cache, (0, 2))
        assert result.hidden.shape == (1, 3, 64) and result.taps is not None
        assert result.taps.shape == (1, 3, 128)
        assert (result.tape is None) == (kind == "dense")
        target.rollback(cache, result.tape, 3, 0)
        assert {layer.offset for layer in cache} == {12}
        assert target.logits_from_hidden(result.hidden).shape == (1, 3, VOCAB)


def test_a_head_over_more_rows_runs_in_passes_of_the_width() -> None:
    inner = make_target()
    counting = CountingBackbone(inner.backbone)
    target = ExactTarget(Target(counting, inner.config), PADDED)
    hidden = mx.random.normal((1, 19, 64))
    found = target.logits_from_hidden(hidden)
    assert counting.head_rows == [8, 8, 8]
    assert bits(found) == bits(inner.logits_from_hidden(hidden))


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@pytest.mark.parametrize(("keep", "drop"), [(3, 6), (0, 3), (9, 0), (2.0, 1)])
def test_bad_counts_leave_the_cache(kind: Kind, keep: Any, drop: Any) -> None:
    target = ExactTarget(make_target(kind), PADDED)
    cache = target.make_cache(40)
    target.forward_with_taps(mx.array([prompt(9)]), cache)
    result = target.verify_rows(mx.array([[1, 2, 3]]), cache, ())
    before = whole(cache)
    with pytest.raises(RollbackError):
        target.rollback(cache, result.tape, keep, drop)
    assert whole(cache) == before


def test_calls_that_no_plan_allows() -> None:
    target = ExactTarget(make_target(), PADDED)
    with pytest.raises(CacheError, match="make_cache"):
        target.make_cache()
    with pytest.raises(CacheError, match="9 rows in one pass, where every pass has 8"):
        target.verify_rows(mx.array([list(range(9))]), target.make_cache(20), ())


# --- the block, and rows of an earlier request ---------------------------------------------------


def test_a_block_is_cut_or_refused() -> None:
    default, asked, chained = Block(None, 16, 7), Block(12, 16, 12), Block(None, None, 7)
    assert limit_block(default, None) == limit_block(default, 7) == default
    assert limit_block(default, 4) == Block(None, 16, 4, "the widest that is exact here")
    assert limit_block(default, 4).describe() == (
        ", block 4 of 16 trained (the widest that is exact here)"
    )
    assert limit_block(chained, 4).draft_tokens == 3
    with pytest.raises(OptionError, match=r"block_size 12 is above the exact width .* 8 rows"):
        limit_block(asked, 8)


def test_the_loop_cuts_its_blocks(tmp_path: Path) -> None:
    target = ExactTarget(make_target(), ExactPlan(4, pads=True))
    plain = decode(target).emitter.token_ids
    run = decode(target, scripted(plain, 4))
    assert (
        run.block == Block(None, 16, 4, "the widest that is exact here")
        and run.emitter.token_ids == plain
    )
    head = tiny_head(tmp_path)[1]
    assert decode(target, head, draft_tokens=6).block.effective == 4
    with pytest.raises(OptionError, match="above the exact width"):
        decode(target, scripted(plain, 5), block_size=5)


@pytest.mark.parametrize(("plan", "shared"), [(PADDED, False), (ExactPlan(16, False), True)])
def test_rows_are_shared_only_where_they_stay_exact(
    plan: ExactPlan, shared: bool, bundled_pair: Pair
) -> None:
    assert bundled_pair.drafter is not None
    target = ExactTarget(bundled_pair.target, plan)
    engine = Engine(target, bundled_pair.tokenizer, [bundled_pair.drafter])
    first = engine.complete(Request("def f(x):\n", max_tokens=12, gate=False))
    ids = [*engine.encode(Request("def f(x):\n")), *first.token_ids, 5]
    again = engine.complete(Request(ids, max_tokens=12, gate=False))
    assert (again.stats.reused_tokens > 0) is shared
    alone = Engine(target, bundled_pair.tokenizer, [])
    assert alone.complete(Request(ids, max_tokens=12)).token_ids == again.token_ids
