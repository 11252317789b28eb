"""Which route the next round takes: the realized-speedup gate, over an injected clock.

Speculation pays where a round's tokens come sooner than plain steps would bring them. The gate
measures both in the same request, leaves a drafter that loses, and comes back to it ever more
rarely. What one request measured is where the next one begins, and never its verdict. Pure: it
knows route names, token counts and times (core/README.md, rule 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..block import Block
from ..options import GenerateOptions
from .block_size import AdaptiveBlock

PLAIN = "none"
"""The route of a plain step."""


class RoutePicker(Protocol):
    """What the loop asks before a round, and tells after it."""

    @property
    def route(self) -> str:
        """Name of the drafter that the next round uses, or PLAIN."""

    def draft_limit(self, most: int) -> int:
        """Drafts of the next round, at most `most`."""

    def start(self) -> None:
        """The round begins now."""

    def finish(self, tokens: int, drafts: int) -> None:
        """The round is over: `tokens` emitted, `drafts` verified, the device waited for."""


class FixedRoute:
    """The picker without a gate: always the same route, full blocks, no clock."""

    def __init__(self, route: str) -> None:
        self.route = route

    def draft_limit(self, most: int) -> int:
        """All of them."""
        return most

    def start(self) -> None:
        """Nothing is measured."""

    def finish(self, tokens: int, drafts: int) -> None:
        """Nothing is measured."""


@dataclass(frozen=True)
class GateSettings:
    """Counts are rounds or plain steps; `*_keep` is the weight of the old value; `retry_*` are the
    plain steps before a drafter that lost is tried again, the first time and at most.

    `later_calibration_steps` are those of a request that others came before. A drafter enters it
    with the ratio that it had, at least `doubt_ratio` and at most `start_ratio`.
    """

    calibration_steps: int = 3
    later_calibration_steps: int = 2
    warmup_rounds: int = 3
    retry_base_steps: int = 32
    retry_max_steps: int = 512
    recalibrate_every_rounds: int = 48
    start_ratio: float = 2.0
    ratio_keep: float = 0.85
    plain_keep: float = 0.7
    plain_outlier: float = 2.0
    doubt_ratio: float = 1.2


@dataclass
class GateMemory:
    """What the requests so far have measured, for the next one to begin with.

    plain_sec: a plain step's time. ratios: how much faster than plain steps each drafter was at
    last. rows: the rows of its last block.
    """

    plain_sec: float | None = None
    ratios: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


class Gate:
    """The state machine; `routes` maps each drafter, in the order they are tried, to its block.

    It begins with a few plain steps, whose time is the measure. The first is cold and not counted;
    what an earlier request measured, over a context of another length, is only a bound. A drafter
    enters with a ratio of 2.0 and some unjudged rounds, because its context is still filling. Where
    the averaged ratio falls below 1, the next drafter enters; after the last one plain steps run,
    32 of them and twice as many after each failure. What wins stays, and one plain step every 48
    rounds keeps the measure fresh.

    memory: shared by the requests of one engine, read at the start and written on the way. A
    drafter that lost before is tried with a ratio that a few losing rounds undo.
    """

    def __init__(
        self,
        routes: Mapping[str, int],
        clock: Callable[[], float],
        settings: GateSettings | None = None,
        memory: GateMemory | None = None,
    ) -> None:
        self.settings = settings or GateSettings()
        self._memory = memory or GateMemory()
        self.plain_sec = self._memory.plain_sec
        self._is_later = self.plain_sec is not None
        self._entry = {name: self._entry_ratio(name) for name in routes}
        self.ratio = self.settings.start_ratio
        self.retry_steps = self.settings.retry_base_steps
        self._clock = clock
        self._started = 0.0
        self._names = tuple(routes)
        self._blocks = {
            name: AdaptiveBlock(rows, self._rows(name)) for name, rows in routes.items()
        }
        self._index = 0
        self._plain = True
        self._calibrated = False
        self._recalibrating = False
        self._run_steps = 0
        self._warmup_rounds = 0
        self._rounds_since_recalibration = 0

    @property
    def route(self) -> str:
        """Name of the drafter that the next round uses, or PLAIN."""
        return PLAIN if self._plain else self._names[self._index]

    def draft_limit(self, most: int) -> int:
        """The adaptive block less its anchor, at most `most`."""
        return min(most, self._blocks[self._names[self._index]].rows - 1)

    def start(self) -> None:
        """Read the clock."""
        self._started = self._clock()

    def finish(self, tokens: int, drafts: int) -> None:
        """Judge the round by the time since `start`."""
        elapsed_sec = self._clock() - self._started
        if self._plain:
            self._after_plain_step(elapsed_sec)
        else:
            block = self._blocks[self._names[self._index]]
            block.record(tokens, drafts + 1, elapsed_sec, self.plain_sec)
            self._memory.rows[self._names[self._index]] = block.rows
            self._after_round(tokens, elapsed_sec)

    def _entry_ratio(self, name: str) -> float:
        known = self._memory.ratios.get(name, self.settings.start_ratio)
        return min(max(known, self.settings.doubt_ratio), self.settings.start_ratio)

    def _rows(self, name: str) -> int | None:
        """The first block of a drafter: twice what an earlier text left of it."""
        known = self._memory.rows.get(name)
        return None if known is None else 2 * known

    def _after_plain_step(self, elapsed_sec: float) -> None:
        if self._calibrated or self._run_steps > 0:  # the very first step is cold
            self.plain_sec = self._averaged(self.plain_sec, elapsed_sec)
            self._memory.plain_sec = self.plain_sec
        self._run_steps += 1
        if self._run_steps < self._window_steps():
            return
        if not self._recalibrating:  # else ratio and warm-up go on where they were
            self._calibrated = True
            self._enter(0)
        self._plain, self._recalibrating, self._run_steps = False, False, 0

    def _averaged(self, old: float | None, sample_sec: float) -> float:
        """A step that the machine held up must not make plain steps look slow: it counts as at
        most twice the average."""
        if old is None:
            return sample_sec
        first = self._is_later and not self._calibrated
        keep = 0.0 if first else self.settings.plain_keep
        return keep * old + (1 - keep) * min(sample_sec, self.settings.plain_outlier * old)

    def _window_steps(self) -> int:
        if not self._calibrated:
            settings = self.settings
            return (
                settings.later_calibration_steps if self._is_later else settings.calibration_steps
            )
        return 1 if self._recalibrating else self.retry_steps

    def _after_round(self, tokens: int, elapsed_sec: float) -> None:
        if self._warmup_rounds > 0:
            self._warmup_rounds -= 1
            return
        if self.plain_sec is None or elapsed_sec <= 0:
            return
        realized = tokens * self.plain_sec / elapsed_sec
        keep = self.settings.ratio_keep
        self.ratio = keep * self.ratio + (1 - keep) * realized
        self._memory.ratios[self._names[self._index]] = self.ratio
        if self.ratio < 1.0:
            self._leave()
            return
        if realized >= 1.0:
            self.retry_steps = self.settings.retry_base_steps
        self._rounds_since_recalibration += 1
        if self._rounds_since_recalibration >= self.settings.recalibrate_every_rounds:
            self._rounds_since_recalibration = 0
            self._plain = self._recalibrating = True

    def _enter(self, index: int) -> None:
        self._index = index
        self._warmup_rounds = self.settings.warmup_rounds
        self.ratio = self._entry.pop(self._names[index], self.settings.start_ratio)

    def _leave(self) -> None:
        """The next drafter, or plain steps after the last."""
        if self._index + 1 < len(self._names):
            self._enter(self._index + 1)
            return
        self._plain = True
        self.retry_steps = min(2 * self.retry_steps, self.settings.retry_max_steps)


def make_picker(
    blocks: Mapping[str, Block],
    options: GenerateOptions,
    clock: Callable[[], float],
    memory: GateMemory | None = None,
) -> RoutePicker:
    """The gate over these drafters, or without a gate the first of them, always. memory: what
    earlier requests have measured."""
    if options.gated and blocks:
        rows = {name: block.effective for name, block in blocks.items()}
        return Gate(rows, clock, memory=memory)
    return FixedRoute(next(iter(blocks), PLAIN))
