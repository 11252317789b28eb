"""What a generation may have beside its drafter and options."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cache.resume import Resume
from .choose import Processor
from .drafter import Drafter
from .gate import RoutePicker


@dataclass(frozen=True)
class Setup:
    """Nothing of it by default.

    reserve: the drafter that the gate tries where the first does not pay.
    picker: chooses each round's route in place of what options.gate says.
    processors: mlx-lm logits processors beside those of options.sampling.
    resume: caches that hold the prompt's first rows already (core/cache/resume.py).
    reusable: mark the prompt's end on the way, so that a later request can go on from there.
    clock: seconds, for statistics and the gate.
    pipelined: queue plain steps before the last one's id is read; None: off the CPU.
    """

    reserve: Drafter | None = None
    picker: RoutePicker | None = None
    processors: Sequence[Processor] = ()
    resume: Resume | None = None
    reusable: bool = False
    clock: Callable[[], float] = time.perf_counter
    pipelined: bool | None = None
