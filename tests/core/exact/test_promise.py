"""What is said of identity is what was measured; the checks at load; the bundled pair by a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.bench.identity import Difference, Identity
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.decode.chat import encode_text
from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.exact.agreement import blocks_agree
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget
from dflash_suite.core.exact.promise import Promise, keep_exact
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.core.probe_store import StoredProbe, probe_key, save_probe
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.target.target import Target
from dflash_suite.drafters import pair as pairs
from dflash_suite.drafters.engine import from_pair
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.pair import Pair
from dflash_suite.drafters.request import Request
from tests.kit.planted import Fault, plant, planted_target
from tests.kit.scripted import ScriptedDrafter, all_right
from tests.kit.tiny import PieceDetokenizer, Precision, make_target, prompt, save_checkpoint

CODE = "def fibonacci(n):\n"
CHECKED = Promise(ExactPlan(7, pads=False, date="2026-11-29"))
STORED = Promise(ExactPlan(8, pads=False, checked="stored", date="2026-11-29"))
IDENTICAL = "identical here (blocks of up to 7 rows, checked at load)"


# --- the words -----------------------------------------------------------------------------------


def test_three_kinds_of_statement() -> None:
    assert CHECKED.describe(7) == IDENTICAL
    assert STORED.describe(8) == "exact: verified on this device on 2026-11-29 (stored probe)"
    for promise, rows in ((CHECKED, 8), (STORED, 9), (Promise(), 1), (Promise(), 7)):
        assert promise.describe(rows) == "not verified on this device"
    assert Promise(problem="3 rows differ").describe(4) == (
        "not verified on this device (3 rows differ)"
    )
    padded = Promise(ExactPlan(8, pads=True), asked=True)
    assert padded.describe(8) == "identical here (every pass at 8 rows, checked at load)"


def finished(sampling: SamplingOptions | None = None, drafts: bool = True) -> Generation:
    drafter: Drafter | None = ScriptedDrafter(all_right(), [1] * 9, 5, 6) if drafts else None
    options = GenerateOptions(4, sampling=sampling or SamplingOptions(), gate=False)
    generation = Generation(
        make_target(), prompt(5), PieceDetokenizer(), drafter=drafter, options=options
    )
    list(generation)
    return generation


def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    assert CHECKED.statement(finished()) == IDENTICAL
    assert CHECKED.statement(finished(drafts=False)) is None
    assert Promise(CHECKED.plan, asked=True).statement(finished(drafts=False)) == IDENTICAL
    assert CHECKED.statement(finished(SamplingOptions(temperature=1.0, seed=3))) is None
    penalties = SamplingOptions(repetition_penalty=1.5)
    assert CHECKED.statement(finished(penalties)) == IDENTICAL


def test_shared_rows_are_exact_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHECKED.describe(4, shared=True) == IDENTICAL
    monkeypatch.setattr("dflash_suite.core.exact.promise.on_cpu", lambda: False)
    assert CHECKED.describe(4, shared=True) == "not verified on this device"
    assert CHECKED.describe(4) == IDENTICAL


def test_a_benchmark_says_what_it_compared() -> None:
    difference = Difference(0, 3, 1, 2, 0.1)
    found = [
        (Identity(2, (), (), {}), "identical here"),
        (Identity(0, (), (), {}), "not verified on this device"),
        (Identity(2, (), (1,), {}), "not verified on this device"),
        (Identity(2, (difference,), (), {}), "not verified on this device"),
    ]
    for identity, statement in found:
        assert identity.statement == statement == identity.to_dict()["statement"]


# --- the checks at load --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_the_short_check_on_the_cpu(precision: Precision) -> None:
    target = make_target("hybrid", precision)
    kept, promise = keep_exact(target, None, rows=7)
    assert kept is target and promise.plan is not None and not promise.asked
    assert promise.plan.width == 7 and not promise.plan.pads


def test_the_short_check_is_short() -> None:
    """rows single ones, and a block of each width."""
    found = blocks_agree(make_target(), 5)
    assert found.holds and found.rows == 2 + 3 + 4 + 5


@pytest.mark.parametrize("fault", ["width", "neighbour", "place", "keys", "width and keys"])
def test_the_short_check_finds_every_fault(fault: Fault) -> None:
    target = planted_target(fault)
    kept, promise = keep_exact(target, None, rows=4)
    assert kept is target and promise.plan is None
    assert "rows differ at width 4" in promise.problem


def test_where_nothing_is_checked_nothing_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target()
    assert keep_exact(target, False, rows=7) == (target, Promise())
    assert keep_exact(target, None, rows=1) == (target, Promise()), "no drafter, no check"
    monkeypatch.setattr("dflash_suite.core.exact.promise.on_cpu", lambda: False)
    assert keep_exact(target, None, rows=7) == (target, Promise())


def test_a_sliding_target_promises_nothing_as_it_is() -> None:
    """A short context would not show it: the ring has to wrap first."""
    changes: dict[str, Any] = {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 64,
    }
    target = make_target("llama", **changes)
    assert blocks_agree(target, 5).holds
    assert keep_exact(target, None, rows=5)[1].problem.startswith("a sliding layer's blocks")
    kept, promise = keep_exact(target, True, rows=5)
    assert isinstance(kept, ExactTarget) and kept.plan.fixes_keys and promise.asked


# --- plans that are stored ------------------------------------------------------------------------

PADDED = StoredProbe("2026-11-20", 8, exact_pads=True, details={"exact_cost": {"64": 1.02}})


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target that has files, and an empty place for probes of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Target(make_target().backbone, read_target_config(save_checkpoint(tmp_path / "model")))


def store(target: Target, probe: StoredProbe) -> None:
    key = probe_key(target)
    assert key is not None
    save_probe(key, probe)


def test_a_plan_that_was_measured_is_stored(on_disk: Target) -> None:
    notes: list[str] = []
    measured = keep_exact(on_disk, True, 7, note=notes.append)[1]
    again = keep_exact(on_disk, True, 7, note=notes.append)[1]
    assert measured.plan is not None and again.plan is not None and not notes
    assert (measured.plan.checked, again.plan.checked) == ("run", "stored")
    assert again.describe(8).startswith("exact: verified on this device on 20")
    assert keep_exact(on_disk, True, 7, stored=False)[1] == measured


def test_a_disk_that_takes_nothing_is_a_note(
    on_disk: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("dflash_suite.core.exact.promise.save_probe", full)
    notes: list[str] = []
    assert keep_exact(on_disk, True, 7, note=notes.append)[1].plan is not None
    assert notes == ["the exact plan could not be stored: no space left"]


def test_a_stored_plan_is_used_where_it_is_asked_for(
    on_disk: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(on_disk, PADDED)
    kept, promise = keep_exact(on_disk, True, 7)
    assert isinstance(kept, ExactTarget) and kept.plan.pads and promise.asked
    assert promise.describe(8) == "exact: verified on this device on 2026-11-20 (stored probe)"
    assert keep_exact(on_disk, None, 7)[0] is on_disk, "the CPU stays as it is"
    store(on_disk, replace(PADDED, exact_pads=False))
    kept, promise = keep_exact(on_disk, None, 7)
    assert kept is on_disk and promise.describe(7).startswith("exact: verified")
    assert promise.describe(9) == "not verified on this device"
    store(on_disk, replace(PADDED, exact_width=4, exact_pads=False))
    _, promise = keep_exact(on_disk, None, 7)
    assert promise.describe(7).startswith("identical here (blocks of up to 7 rows"), "too narrow"
    assert keep_exact(on_disk, False, 7) == (on_disk, Promise())


def test_off_the_cpu_a_stored_plan_is_the_default_where_it_costs_nothing(
    on_disk: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = replace(PADDED, exact_pads=False)
    store(on_disk, free)
    monkeypatch.setattr("dflash_suite.core.exact.promise.on_cpu", lambda: False)
    assert keep_exact(on_disk, None, 7) == (on_disk, Promise()), "MLX's own arithmetic there"
    monkeypatch.setattr(on_disk.backbone, "kernels", "fused")
    monkeypatch.setattr(type(on_disk.backbone), "independent_rows", 16)
    assert keep_exact(on_disk, None, 7) == (on_disk, Promise()), "another key"
    store(on_disk, PADDED)
    assert keep_exact(on_disk, None, 7) == (on_disk, Promise()), "padding costs something"
    store(on_disk, free)
    kept, promise = keep_exact(on_disk, None, 7)
    assert kept is on_disk and not promise.asked
    assert promise.describe(7) == "exact: verified on this device on 2026-11-20 (stored probe)"
    assert promise.describe(9) == "not verified on this device"
    assert keep_exact(on_disk, None, 7, stored=False) == (on_disk, Promise())


def test_a_plan_off_the_cpu_queues_plain_steps_of_the_suites_kernels_alone(
    on_disk: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = ExactTarget(on_disk, ExactPlan(16, pads=False))
    assert exact.can_queue
    monkeypatch.setattr("dflash_suite.core.exact.plan.on_cpu", lambda: False)
    assert not exact.can_queue and on_disk.can_queue
    monkeypatch.setattr(type(on_disk.backbone), "independent_rows", 16)
    assert exact.can_queue
    assert not ExactTarget(on_disk, ExactPlan(16, pads=True)).can_queue


# --- the bundled pair ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact_pair() -> Pair:
    return pairs.load_pair(LoadOptions(dtype="float32", exact=True, stored_probe=False))


def test_the_bundled_pair_is_exact_as_it_is(exact_pair: Pair) -> None:
    assert isinstance(exact_pair.target, ExactTarget)
    plan = exact_pair.target.plan
    assert (plan.width, plan.pads, plan.fixes_keys) == (16, False, False)
    assert exact_pair.promise == Promise(plan, asked=True)


@pytest.mark.long
@pytest.mark.parametrize("width", [8])
def test_padded_passes_of_the_bundled_pair(
    width: int, bundled_pairs: dict[str, Pair], bundled_mtp: MtpDrafter
) -> None:
    """On a device that is planted: rows follow the width, attention the number of keys."""
    tokenizer = bundled_pairs["dflash"].tokenizer
    loaded = pairs.load_pair(LoadOptions(speculation="none", dtype="float32", exact=False))
    target = ExactTarget(plant(loaded.target, "width and keys"), ExactPlan(width, pads=True))
    ids = encode_text(tokenizer, CODE)

    def decode(drafter: Drafter | None, **options: Any) -> Generation:
        wanted = GenerateOptions(16, gate=False, **options)
        made = Generation(target, ids, tokenizer.detokenizer, drafter=drafter, options=wanted)
        list(made)
        return made

    plain = decode(None).emitter.token_ids
    assert len(plain) == 16 and len(set(plain)) > 6
    for pair in bundled_pairs.values():
        for block in (2, min(width, 8)):
            found = decode(pair.drafter, block_size=block)
            assert found.emitter.token_ids == plain
            assert 0 < found.stats.accepted < found.stats.drafted
    found = decode(bundled_mtp, draft_tokens=3)
    assert found.emitter.token_ids == plain and 0 < found.stats.accepted < found.stats.drafted


def test_requests_say_it_each_for_itself(exact_pair: Pair) -> None:
    engine = from_pair(exact_pair)
    said = "identical here (blocks of up to 16 rows, checked at load)"
    done = engine.complete(Request(CODE, max_tokens=6))
    assert done.identity == said
    assert engine.complete(Request(CODE, max_tokens=6, speculation="none")).identity == said
    sampled = SamplingOptions(temperature=1.0, seed=1)
    assert engine.complete(Request(CODE, max_tokens=6, sampling=sampled)).identity is None
