"""Routes switched by force, at every offset within a block, by chance, and by the gate: the ids
and the target's caches stay those of plain decoding, and every context stays current."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.contexts import BACKLOG_ROWS
from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.gate import PLAIN, FixedRoute, GateSettings
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.options import GenerateOptions, MtpHidden
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.pair import Pair
from tests.kit.scripted import ScriptedDrafter, wrong_at
from tests.kit.snapshots import assert_as_fed_alone, bits
from tests.kit.tiny import PieceDetokenizer, assert_varied, make_target, prompt, stock_greedy
from tests.kit.tiny_drafter import make_drafter
from tests.kit.tiny_mtp import MOE, head_tensors, tiny_head

TOKENS = 60
CYCLE = ("dflash", "mtp", PLAIN)


@dataclass
class ScriptedPicker:
    """Goes through `routes` again and again."""

    routes: Sequence[str]
    rounds: int = 0
    taken: list[str] = field(default_factory=list)

    @property
    def route(self) -> str:
        return self.routes[self.rounds % len(self.routes)]

    def draft_limit(self, most: int) -> int:
        return most

    def start(self) -> None:
        self.taken.append(self.route)

    def finish(self, tokens: int, drafts: int) -> None:
        self.rounds += 1


@dataclass
class RandomPicker(ScriptedPicker):
    """A route and a block by chance, each round."""

    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._route = self._random.choice(self.routes)

    @property
    def route(self) -> str:
        return self._route

    def draft_limit(self, most: int) -> int:
        return self._random.randint(1, most)

    def finish(self, tokens: int, drafts: int) -> None:
        self.rounds += 1
        self._route = self._random.choice(self.routes)


@pytest.fixture(scope="module")
def hybrid() -> Target:
    return make_target("hybrid")


@pytest.fixture(scope="module")
def plain(hybrid: Target) -> list[int]:
    ids = stock_greedy(hybrid.backbone.model, prompt(11), TOKENS + 10)
    assert_varied(ids)
    return ids


def run(
    target: Target, drafters: Sequence[Drafter], picker: Any, tokens: int = TOKENS
) -> Generation:
    """Decode with two drafters; before each draft its drafter must stand at the target."""
    generation = Generation(
        target,
        prompt(11),
        PieceDetokenizer(),
        drafter=drafters[0],
        options=GenerateOptions(max_tokens=tokens),
        setup=Setup(reserve=drafters[1], picker=picker),
    )
    for _ in generation:
        pass
    return generation


def scripted(target: Target, plain: list[int], name: str, wrong: int, rows: int) -> ScriptedDrafter:
    return ScriptedDrafter(
        wrong_at(wrong, target.config.vocab_size),
        plain,
        11,
        trained_block_size=rows,
        name=name,
        tap_ids=(0, 2) if name == "dflash" else (3, 2),
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mtp_offset", range(4))
@pytest.mark.parametrize("offset", range(7))
def test_switches_at_every_offset(
    hybrid: Target, plain: list[int], offset: int, mtp_offset: int
) -> None:
    """DFlash -> MTP -> plain -> DFlash, each round ending after so many kept drafts."""
    dflash = scripted(hybrid, plain, "dflash", offset, 8)
    mtp = scripted(hybrid, plain, "mtp", mtp_offset, 5)
    count = 40
    generation = run(hybrid, [dflash, mtp], ScriptedPicker(CYCLE), count)
    stats = generation.stats
    assert generation.emitter.token_ids == plain[:count]
    fed = [*prompt(11), *plain[: count - 1]]
    assert_as_fed_alone(generation.cache, hybrid.backbone.model, fed, 11)
    lengths = [offset + 1 if index % 2 == 0 else mtp_offset + 1 for index in range(stats.rounds)]
    assert stats.accept_lengths[:-1] == lengths[:-1] and stats.rounds > 5
    assert stats.rounds_by_route["dflash"] == dflash.rounds > 0
    assert stats.rounds_by_route["mtp"] == mtp.rounds > 0
    assert stats.rounds_by_route[PLAIN] == stats.plain_steps > 0
    assert stats.drafter_resets == 0


def test_every_context_stays_current(hybrid: Target, plain: list[int]) -> None:
    """Each drafter has seen each committed row once, with its own taps in its own order."""
    drafters = [scripted(hybrid, plain, "dflash", 2, 8), scripted(hybrid, plain, "mtp", 1, 5)]
    picker = ScriptedPicker(["dflash", *[PLAIN] * 9, "mtp", *["dflash"] * 3, *[PLAIN] * 4, "mtp"])
    generation = run(hybrid, drafters, picker)
    generation.contexts.align("dflash", generation.position)
    generation.contexts.align("mtp", generation.position)
    ids = [*prompt(11), *plain[: TOKENS - 1]]
    for drafter in drafters:
        assert drafter.observed_ids == ids
        assert drafter.observed_positions == list(range(len(ids)))
        assert drafter.reset_positions == [0]
        cache = hybrid.make_cache()
        rows = [
            hybrid.forward_with_taps(mx.array([[token]]), cache, drafter.tap_ids) for token in ids
        ]
        taps = mx.concatenate([row.taps for row in rows if row.taps is not None], axis=1)
        assert bits(drafter.observed_taps()) == bits(taps)
        assert bits(drafter.observed_hidden()) == bits(
            mx.concatenate([row.hidden for row in rows], axis=1)
        )


def test_rows_wait_but_not_without_end(hybrid: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """During plain steps rows reach a drafter in pieces, never more than the bound at once."""
    monkeypatch.setattr("dflash_suite.core.decode.contexts.BACKLOG_ROWS", 64)
    long = stock_greedy(hybrid.backbone.model, prompt(11), 200)
    drafters = [scripted(hybrid, long, "dflash", 2, 8), scripted(hybrid, long, "mtp", 1, 5)]
    generation = run(hybrid, drafters, ScriptedPicker([*[PLAIN] * 150, "dflash"]), 170)
    assert generation.emitter.token_ids == long[:170]
    pieces = [int(rows.token_ids.shape[0]) for rows in drafters[0].observed]
    assert pieces[:4] == [10, 1, 64, 64] and pieces[4] == 150 - 2 * 64
    assert BACKLOG_ROWS > GateSettings().retry_max_steps
    assert generation.stats.drafter_resets == 0


def test_a_switch_waits_for_the_device_once(
    hybrid: Target, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last route left undone must not be timed as the next one's."""
    waits: list[int] = []
    real = mx.eval
    counts, both = [], []

    def counted(*arrays: Any) -> None:
        waits.append(len(arrays))
        real(*arrays)

    for routes in (("dflash",), CYCLE):
        drafters = [scripted(hybrid, plain, "dflash", 3, 8), scripted(hybrid, plain, "mtp", 1, 5)]
        picker = ScriptedPicker(routes)
        with monkeypatch.context() as patch:
            patch.setattr(mx, "eval", counted)
            generation = run(hybrid, drafters, picker, 40)
        passes = generation.stats.target_passes
        counts.append(len(waits) - passes)
        both.append(waits.count(2))  # caches and contexts
        waits.clear()
    switches = generation.stats.target_passes - 1  # the cycle takes another route every round
    assert counts[1] - counts[0] == both[1] - both[0] == switches > 10


def test_a_lost_context_is_realigned(hybrid: Target, plain: list[int]) -> None:
    """A drafter that missed rows starts over at the right position."""
    dflash = scripted(hybrid, plain, "dflash", 3, 8)
    dflash.gap_at_rounds = (2,)
    mtp = scripted(hybrid, plain, "mtp", 1, 5)
    generation = run(hybrid, [dflash, mtp], ScriptedPicker(CYCLE))
    assert generation.emitter.token_ids == plain[:TOKENS]
    assert dflash.dropped and generation.stats.drafter_resets == len(dflash.reset_positions) - 1 > 0
    lost = {int(rows.position) for rows in dflash.dropped}
    assert lost.isdisjoint(dflash.observed_positions)
    assert dflash.draft_positions[-1] == dflash.observed_positions[-1] + 1 - len(
        dflash.observed[-1].token_ids
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", ["dense", "fused"])
@pytest.mark.parametrize("seed", range(3))
def test_random_routes_with_a_random_head(tmp_path: Path, kind: Any, seed: int) -> None:
    changes = MOE if kind == "fused" else {}
    target, head = tiny_head(tmp_path, head_tensors(kind), **changes)
    model = target.backbone.model
    plain = stock_greedy(model, prompt(11), TOKENS + 10)
    picker = RandomPicker(("dflash", "mtp", PLAIN), seed=seed)
    generation = run(target, [scripted(target, plain, "dflash", 4, 8), head], picker)
    assert generation.emitter.token_ids == plain[:TOKENS]
    assert set(generation.stats.rounds_by_route) == {"dflash", "mtp", PLAIN}
    assert_as_fed_alone(generation.cache, model, [*prompt(11), *plain[: TOKENS - 1]], 11)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["dflash", "dflash2"])
def test_random_routes_on_the_bundled_pair(
    bundled_pairs: Mapping[str, Pair],
    bundled_mtp: MtpDrafter,
    bundled_prompts: list[dict[str, Any]],
    name: str,
) -> None:
    pair, routes = bundled_pairs[name], (name, "mtp", PLAIN)
    for seed, record in enumerate((bundled_prompts[1], bundled_prompts[6])):
        picker = RandomPicker(routes, seed=seed)
        generation = Generation(
            pair.target,
            record["prompt_ids"],
            pair.tokenizer.detokenizer,
            drafter=pair.drafter,
            options=GenerateOptions(max_tokens=60),
            setup=Setup(reserve=bundled_mtp, picker=picker),
        )
        for _ in generation:
            pass
        stats = generation.stats
        assert generation.emitter.token_ids == record["plain_ids"][:60]
        assert stats.drafter_resets == 0 and stats.accepted > 0
        assert all(stats.rounds_by_route[route] > 0 for route in routes)


@pytest.mark.parametrize("hidden", ["post", "pre"])
@pytest.mark.parametrize("route", ["dflash2", "mtp"])
def test_a_second_drafter_alive_changes_no_context(
    tmp_path: Path, route: str, hidden: MtpHidden
) -> None:
    """A prompt beyond the sliding window, in chunks: each context as if it were the only one."""
    target, head = tiny_head(tmp_path / "target", hidden=hidden)
    block = make_drafter(tmp_path / "drafter", "dflash2", ends=target)
    own: Drafter = block if route == "dflash2" else head
    contexts = []
    for drafter, reserve in ((own, None), (block, head)):
        generation = Generation(
            target,
            prompt(50),
            PieceDetokenizer(),
            drafter=drafter,
            options=GenerateOptions(max_tokens=20, prefill_step_size=7),
            setup=Setup(reserve=reserve, picker=FixedRoute(route)),
        )
        for _ in generation:
            pass
        assert generation.stats.rounds > 5 and generation.stats.drafter_resets == 0
        session = generation.contexts.sessions[route]
        contexts.append([bits(array) for array in session.state()])
    assert contexts[0] == contexts[1] and len(contexts[0]) > 2
    (other,) = (one for name, one in generation.contexts.sessions.items() if name != route)
    generation.contexts.align(other.name, generation.position)
    assert other.position == generation.position and generation.stats.drafter_resets == 0


def test_the_gate_on_a_real_clock_changes_no_id(
    bundled_pair: Pair, bundled_mtp: MtpDrafter, bundled_prompts: list[dict[str, Any]]
) -> None:
    record = bundled_prompts[0]
    generation = Generation(
        bundled_pair.target,
        record["prompt_ids"],
        bundled_pair.tokenizer.detokenizer,
        drafter=bundled_pair.drafter,
        options=GenerateOptions(max_tokens=120),
        setup=Setup(reserve=bundled_mtp),
    )
    for _ in generation:
        pass
    stats = generation.stats
    assert generation.emitter.token_ids == record["plain_ids"][:120]
    assert stats.plain_steps >= 3 and stats.rounds_by_route["dflash2"] >= 3
    assert sum(stats.rounds_by_route.values()) == stats.rounds + stats.plain_steps
    assert stats.emitted + stats.plain_steps + 1 == 120
