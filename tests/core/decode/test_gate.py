"""The realized-speedup gate and the adaptive block: tables, then whole simulated requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dflash_suite.core.decode.block_size import AdaptiveBlock
from dflash_suite.core.decode.gate import PLAIN, FixedRoute, Gate, GateMemory, GateSettings
from tests.kit.gate_sim import Clock, Source, simulate

pytestmark = pytest.mark.quick

ONE = {"dflash2": 8}
CHAIN = {"dflash2": 8, "mtp": 4}


class Driver:
    """A gate and a hand on its clock; a plain step takes one second."""

    def __init__(self, routes: dict[str, int], settings: GateSettings | None = None) -> None:
        self.clock = Clock()
        self.gate = Gate(routes, self.clock, settings)

    def plain(self, count: int = 1, sec: float = 1.0) -> None:
        for _ in range(count):
            assert self.gate.route == PLAIN
            self._round(1, 0, sec)

    def spec(self, realized: float, count: int = 1, route: str = "dflash2") -> None:
        """Rounds that bring tokens `realized` times as fast as plain steps do now."""
        for _ in range(count):
            assert self.gate.route == route
            measure = self.gate.plain_sec
            assert measure is not None
            sec = 4 * measure / realized if realized else 1e12
            self._round(4, 4, sec)

    def until_it_leaves(self, realized: float, route: str = "dflash2", limit: int = 400) -> int:
        """Judged rounds at a steady ratio until the route is left; `limit` where it never is."""
        self.spec(realized, self.gate.settings.warmup_rounds, route)
        for judged in range(1, limit):
            if self.gate.route == PLAIN and self.gate.ratio >= 1.0:
                self.plain()  # the one step that refreshes the measure
            self.spec(realized, 1, route)
            if self.gate.ratio < 1.0 or self.gate.route not in (route, PLAIN):
                return judged
        return limit

    def _round(self, tokens: int, drafts: int, sec: float) -> None:
        self.gate.start()
        self.clock.now += sec
        self.gate.finish(tokens, drafts)


def calibrated(routes: dict[str, int] = ONE, settings: GateSettings | None = None) -> Driver:
    driver = Driver(routes, settings)
    driver.plain(3)
    return driver


@pytest.mark.parametrize(
    ("keep", "realized", "rounds"),
    [  # the published weights, then the corrected ones
        (0.6, 0.0, 2), (0.6, 0.5, 3), (0.6, 0.9, 5), (0.6, 1.0, 400),
        (0.85, 0.0, 5), (0.85, 0.5, 7), (0.85, 0.9, 15), (0.85, 1.0, 400), (0.85, 1.7, 400),
    ],
)  # fmt: skip
def test_how_long_a_steady_ratio_is_kept(keep: float, realized: float, rounds: int) -> None:
    driver = calibrated(settings=GateSettings(ratio_keep=keep))
    assert driver.until_it_leaves(realized) == rounds


def test_the_default_weight_is_the_corrected_one() -> None:
    settings = GateSettings()
    assert settings.ratio_keep == 0.85 and settings.plain_keep == 0.7
    assert (settings.calibration_steps, settings.warmup_rounds) == (3, 3)
    assert (settings.retry_base_steps, settings.retry_max_steps) == (32, 512)
    assert settings.recalibrate_every_rounds == 48


def test_the_cold_first_step_is_not_a_measure() -> None:
    driver = Driver(ONE)
    driver.plain(sec=187.0)
    assert driver.gate.plain_sec is None
    driver.plain(sec=23.0)
    assert driver.gate.plain_sec == 23.0
    driver.plain(sec=33.0)
    assert driver.gate.plain_sec == pytest.approx(0.7 * 23 + 0.3 * 33)
    assert driver.gate.route == "dflash2"


def test_a_step_that_was_held_up_is_no_measure() -> None:
    """On a busy machine one step of 20 seconds must not make every drafter look good."""
    driver = calibrated()
    driver.until_it_leaves(0.0)
    driver.plain(63)
    driver.plain(sec=20.0)
    assert driver.gate.plain_sec == pytest.approx(0.7 + 0.3 * 2.0)
    driver.until_it_leaves(0.0)
    driver.plain(40, sec=3.0)  # yet a lasting change is followed
    assert driver.gate.plain_sec == pytest.approx(3.0, rel=0.01)


def test_warm_up_rounds_are_not_judged() -> None:
    driver = calibrated()
    driver.spec(0.0, 3)
    assert driver.gate.ratio == 2.0
    driver.spec(0.0, 1)
    assert driver.gate.ratio == pytest.approx(1.7)


def test_back_off_doubles_to_its_limit_and_every_entry_is_reseeded() -> None:
    driver = calibrated()
    for window in (64, 128, 256, 512, 512, 512):
        assert driver.gate.ratio == 2.0
        assert driver.until_it_leaves(0.5) == 7
        assert driver.gate.retry_steps == window
        driver.plain(window)
        assert driver.gate.route == "dflash2"


@pytest.mark.parametrize(("realized", "window"), [(0.99, 256), (1.0, 32), (3.0, 32)])
def test_only_a_winning_round_resets_the_back_off(realized: float, window: int) -> None:
    """As first written every re-entry did, and a bad drafter kept costing."""
    driver = calibrated()
    for steps in (64, 128):
        driver.until_it_leaves(0.0)
        driver.plain(steps)
    driver.spec(5.0, 3)  # unjudged: no reset
    assert driver.gate.retry_steps == 128
    driver.spec(realized, 1)
    assert driver.gate.retry_steps == (128 if realized < 1 else 32)
    for _ in range(20):
        if driver.gate.route == PLAIN:
            break
        driver.spec(0.0)
    assert driver.gate.retry_steps == (window if realized < 1 else 64)


def test_one_plain_step_refreshes_the_measure() -> None:
    driver = calibrated()
    driver.spec(1.5, 3 + 47)
    ratio = driver.gate.ratio
    driver.spec(1.5, 1)
    assert driver.gate.route == PLAIN
    driver.plain(sec=2.0)
    assert driver.gate.plain_sec == pytest.approx(0.7 + 0.3 * 2.0)
    assert driver.gate.route == "dflash2" and driver.gate.ratio == pytest.approx(ratio, rel=0.01)
    driver.spec(0.0, 1)
    assert driver.gate.ratio < ratio  # judged at once: no new warm-up
    driver.spec(1.5, 46)
    assert driver.gate.route == "dflash2"
    driver.spec(1.5, 1)
    assert driver.gate.route == PLAIN


def test_a_round_that_took_no_time_is_not_judged() -> None:
    driver = calibrated()
    driver.spec(1.0, 3)
    driver.gate.start()
    driver.gate.finish(4, 4)
    assert driver.gate.ratio == 2.0 and driver.gate.route == "dflash2"


def test_the_chain_tries_mtp_before_plain() -> None:
    driver = calibrated(CHAIN)
    assert driver.until_it_leaves(0.5) == 7
    assert driver.gate.route == "mtp" and driver.gate.ratio == 2.0
    assert driver.gate.retry_steps == 32  # nothing is given up yet
    assert driver.until_it_leaves(0.5, "mtp") == 7
    assert driver.gate.route == PLAIN and driver.gate.retry_steps == 64
    driver.plain(64)
    assert driver.gate.route == "dflash2"


def test_what_wins_stays() -> None:
    driver = calibrated(CHAIN)
    driver.until_it_leaves(0.5)
    assert driver.until_it_leaves(1.2, "mtp") == 400
    assert driver.gate.route in ("mtp", PLAIN)


def test_without_a_gate_nothing_changes() -> None:
    picker = FixedRoute("dflash2")
    for tokens in (1, 1, 1, 7):
        picker.start()
        picker.finish(tokens, 7)
        assert picker.route == "dflash2" and picker.draft_limit(7) == 7


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_bad_drafter_costs_little(adaptive: bool) -> None:
    """5,000 tokens, a round = 1.8 plain steps and never a draft kept: at least 0.97 of plain."""
    sources = {"dflash2": Source(8, lambda rows: 1.8, [1])}
    result = simulate(sources, 5000, adaptive=adaptive, cold_sec=8.0)
    assert result.speed >= 0.97
    assert result.counts["dflash2"] > 50  # and it was tried again and again


def test_a_good_drafter_is_used(bundled_prompts: list[dict[str, Any]]) -> None:
    """DFlash2's recorded accepts, 8 rows = 1.3 steps: at least 95 % of the rounds."""
    lengths = recorded(bundled_prompts, "dflash2")
    assert len(lengths) == 1539
    for adaptive in (True, False):
        sources = {"dflash2": Source(8, lambda rows: 1.3, lengths)}
        result = simulate(sources, 5000, adaptive=adaptive)
        assert result.counts["dflash2"] >= 0.95 * len(result.routes)
        assert result.speed > 2.3
    switches = [*zip(result.routes, result.routes[1:], strict=False)].count(("dflash2", PLAIN))
    assert switches <= len(result.routes) // 48  # refreshed, never left


def recorded(prompts: list[dict[str, Any]], name: str) -> list[int]:
    return [length for record in prompts for length in record[name]["accept_lengths"]]


def test_mtp_takes_over_where_the_block_drafter_loses(
    bundled_prompts: list[dict[str, Any]],
) -> None:
    """Rows that cost: eight of them lose, four of them win."""
    sources = {
        "dflash2": Source(8, lambda rows: rows / 1.5, recorded(bundled_prompts, "dflash2")),
        "mtp": Source(4, lambda rows: 1 + 0.25 * rows, recorded(bundled_prompts, "mtp3")),
    }
    result = simulate(sources, 5000, adaptive=False)
    assert result.speed > 1.2
    assert result.counts["mtp"] > 9 * result.counts["dflash2"] > 90


@pytest.mark.parametrize("cost", [(1.3, 0.0), (1.0, 0.04), (0.85, 0.15)])
def test_the_adaptive_block_is_near_the_best_of_its_sizes(
    cost: tuple[float, float], bundled_prompts: list[dict[str, Any]]
) -> None:
    """Never far below the best fixed block among the sizes that it chooses from."""
    lengths = recorded(bundled_prompts, "dflash2")

    def speed(rows: int, adaptive: bool) -> float:
        source = Source(rows, lambda fed: cost[0] + cost[1] * fed, lengths)
        return simulate({"dflash2": source}, 5000, adaptive=adaptive).speed

    best = max(speed(rows, adaptive=False) for rows in (8, 4, 2))
    assert speed(8, adaptive=True) >= 0.9 * best


def test_the_block_halves_where_that_pays_and_returns_where_it_does_not() -> None:
    seen: dict[str, Counter[int]] = {"linear": Counter(), "flat": Counter()}
    blocks = {name: AdaptiveBlock(8) for name in seen}
    for _ in range(200):
        rows = blocks["linear"].rows  # time by the row: the two tokens are cheapest in two rows
        seen["linear"][rows] += 1
        blocks["linear"].record(2, rows, float(rows))
        rows = blocks["flat"].rows  # rows cost nothing: half of them bring half the tokens
        seen["flat"][rows] += 1
        blocks["flat"].record(max(1, rows // 3), rows, 1.0)
    assert blocks["linear"].rows == 2 and seen["linear"][2] > 150
    assert blocks["flat"].rows == 8 and 8 <= seen["flat"][4] <= 24


def test_a_losing_block_shrinks_at_once() -> None:
    """Where plain steps are faster there is no time for trials; two rows are the least."""
    block = AdaptiveBlock(7)
    sizes = []
    for _ in range(12):
        sizes.append(block.rows)
        block.record(1, block.rows, float(block.rows), plain_sec=1.0)
    assert sizes == [7] * 4 + [3] * 4 + [2] * 4
    patient = AdaptiveBlock(7)
    for _ in range(7):
        patient.record(1, 7, 1.3, plain_sec=1.0)  # slower than plain, by less than rows can save
    assert patient.rows == 7


def test_a_cut_block_teaches_nothing() -> None:
    block = AdaptiveBlock(8)
    for _ in range(50):
        block.record(1, 3, 1.0)
    assert block.rows == 8 and block.share == 1.0


# --- requests one after another ------------------------------------------------------------------

GOOD = {"dflash2": Source(8, lambda rows: 1.3, [8])}
BAD = {"dflash2": Source(8, lambda rows: 1.8, [1])}


def test_after_a_long_losing_request_each_further_one_tries_its_drafter() -> None:
    """The back-off of the first, up to 512 plain steps, outlived it: six requests ran no round."""
    memory = GateMemory()
    simulate(BAD, 3000, memory=memory)
    for _ in range(6):
        later = simulate(GOOD, 40, memory=memory)
        assert later.counts["dflash2"] >= 5 and later.counts[PLAIN] == 2
        assert later.routes[2] == "dflash2" and later.speed > 3


def test_a_drafter_that_always_loses_costs_a_few_rounds_a_request() -> None:
    memory = GateMemory()
    simulate(BAD, 3000, memory=memory)
    later = [simulate(BAD, 40, memory=memory) for _ in range(6)]
    assert [one.counts["dflash2"] for one in later] == [6] * 6, (
        "three unjudged, and three that lose"
    )


def test_both_drafters_are_tried_again() -> None:
    memory = GateMemory()
    sources = {**BAD, "mtp": Source(4, lambda rows: 1.6, [1])}
    simulate(sources, 3000, memory=memory)
    later = simulate({**BAD, "mtp": Source(4, lambda rows: 1.2, [4])}, 100, memory=memory)
    assert later.counts["dflash2"] == 6 and later.counts["mtp"] > 15


def test_a_shorter_context_is_not_measured_by_a_longer_one() -> None:
    """Plain steps of a tenth of the time: a drafter that only wins over slow ones is left soon."""
    memory = GateMemory(plain_sec=10.0, ratios={"dflash2": 3.0})
    later = simulate({"dflash2": Source(8, lambda rows: 4.0, [3])}, 300, memory=memory)
    assert memory.plain_sec == 1.0
    assert later.counts["dflash2"] < 40 and later.counts[PLAIN] > 150


def test_a_block_begins_at_twice_what_the_last_text_left() -> None:
    memory = GateMemory(plain_sec=1.0, rows={"dflash2": 2})
    assert simulate(GOOD, 5, memory=memory).rows[2] == 4
    memory.rows["dflash2"] = 7
    assert simulate(GOOD, 5, memory=memory).rows[2] == 8
    assert memory.rows == {"dflash2": 8}
