"""What a generation may have beside its drafter and options."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..cache.resume import Resume
from .choose import Processor
from .drafter import Drafter
from .gate import RoutePicker
from .marks import MarkPlan


@dataclass(frozen=True)
class Setup:
    """Nothing of it by default.

    reserve: the drafter that the gate tries where the first does not pay.
    picker: chooses each round's route in place of what options.gate says.
    processors: mlx-lm logits processors beside those of options.sampling.
    resume: caches that hold the prompt's first rows already (core/cache/resume.py).
    marks: where to mark the way, so that later requests can go on from there; None: nowhere.
    on_over: called once the generation is over, however it ended.
    clock: seconds, for statistics and the gate.
    pipelined: queue plain steps before the last one's id is read; None: off the CPU.
    """

    reserve: Drafter | None = None
    picker: RoutePicker | None = None
    processors: Sequence[Processor] = ()
    resume: Resume | None = None
    marks: MarkPlan | None = None
    on_over: Callable[[Any], None] | None = None
    clock: Callable[[], float] = time.perf_counter
    pipelined: bool | None = None
