"""Runs a benchmark: one request of the decode loop per arm and prompt, in the planned order.

Does the work and keeps every sample; figures are made of them in bench_report. An interrupted run
keeps the samples that were finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import mlx.core as mx

from ..block import limit_block
from ..decode.emit import Detokenizer
from ..decode.loop import Generation
from ..decode.setup import Setup
from ..errors import OptionError
from ..options import GenerateOptions
from ..stats import GenerationStats
from ..target.target import Target
from .options import BenchOptions
from .plan import BenchStep, make_plan
from .types import Arm, BenchPrompt, Sample
from .widths import measure_widths


@dataclass(frozen=True)
class BenchProgress:
    """`done` of `total` steps; `step` comes next, None at the end; left_sec is None at first."""

    done: int
    total: int
    step: BenchStep | None
    left_sec: float | None


class Bench:
    """One benchmark: iterate `run` for progress; samples, references, phases and widths fill up.

    phases: statistics of the separate synchronised passes, by arm; widths: seconds by rows.
    """

    def __init__(
        self,
        target: Target,
        new_detokenizer: Callable[[], Detokenizer],
        arms: Sequence[Arm],
        prompts: Sequence[BenchPrompt],
        options: BenchOptions | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not arms or not prompts:
            raise OptionError("a benchmark needs at least one arm and one prompt")
        self.target = target
        self.arms = list(arms)
        self.prompts = list(prompts)
        self.options = options or BenchOptions()
        self.samples: list[Sample] = []
        self.references: dict[int, tuple[int, ...]] = {}
        self.phases: dict[int, list[GenerationStats]] = {}
        self.widths: dict[int, float] = {}
        self.finished = False
        self._new_detokenizer = new_detokenizer
        self._clock = clock

    @property
    def plan(self) -> list[BenchStep]:
        """Everything that is going to be done, in order."""
        return make_plan(
            arms=len(self.arms),
            prompts=len(self.prompts),
            repeats=self.options.repeats,
            profile_prompts=self.options.profile_prompts,
            reference=not any(arm.is_plain for arm in self.arms),
            widths=self.options.width_repeats > 0,
        )

    def run(self) -> Iterator[BenchProgress]:
        """Do the plan, saying before each step what comes next."""
        plan = self.plan
        spent: dict[tuple[str, int | None], list[float]] = {}
        for done, step in enumerate(plan):
            yield BenchProgress(done, len(plan), step, _time_left(plan[done:], spent))
            started = time.perf_counter()
            self._do(step)
            spent.setdefault((step.work, step.arm), []).append(time.perf_counter() - started)
        self.finished = True
        yield BenchProgress(len(plan), len(plan), None, 0.0)

    def _do(self, step: BenchStep) -> None:
        options = self.options
        prompt = self.prompts[step.prompt]
        if step.work == "widths":
            self.widths = measure_widths(
                self.target, prompt.ids, self._widths(), options.width_repeats, self._clock
            )
            return
        if step.arm is None:
            plain = Arm("none", None, None, self._limits(GenerateOptions()), {})
            self.references[step.prompt] = tuple(self._decode(plain, prompt).emitter.token_ids)
            return
        arm = self.arms[step.arm]
        arm = replace(arm, options=self._limits(arm.options))
        if step.work == "warm-up":
            short = min(options.warmup_tokens, options.max_tokens)
            self._decode(replace(arm, options=replace(arm.options, max_tokens=short)), prompt)
        elif step.work == "profile":
            arm = replace(arm, options=replace(arm.options, profile=True))
            self.phases.setdefault(step.arm, []).append(self._decode(arm, prompt).stats)
        else:
            self._measure(step, step.arm, arm, prompt)

    def _measure(self, step: BenchStep, index: int, arm: Arm, prompt: BenchPrompt) -> None:
        generation = self._decode(arm, prompt)
        reason = generation.emitter.reason or "cancelled"
        ids = tuple(generation.emitter.token_ids)
        self.samples.append(
            Sample(index, step.prompt, step.repeat, step.place, ids, reason, generation.stats)
        )
        if arm.is_plain:
            self.references.setdefault(step.prompt, ids)

    def _decode(self, arm: Arm, prompt: BenchPrompt) -> Generation:
        """One whole answer, from a quiet device: nothing of the last one is left running."""
        generation = Generation(
            self.target,
            prompt.ids,
            self._new_detokenizer(),
            arm.drafter,
            arm.options,
            Setup(reserve=arm.reserve, clock=self._clock),
        )
        mx.synchronize()
        mx.reset_peak_memory()
        for _ in generation:
            pass
        return generation

    def _limits(self, options: GenerateOptions) -> GenerateOptions:
        """The benchmark's own limits, the same for every arm."""
        return replace(
            options,
            max_tokens=self.options.max_tokens,
            prefill_step_size=self.options.prefill_step_size,
        )

    def _widths(self) -> list[int]:
        """1 .. the longest block of any arm."""
        widest = self.target.widest
        longest = max(
            limit_block(arm.drafter.block(arm.options), widest).effective if arm.drafter else 1
            for arm in self.arms
        )
        return list(range(1, longest + 1))


def _time_left(
    steps: Sequence[BenchStep], spent: dict[tuple[str, int | None], list[float]]
) -> float | None:
    """From the mean of the steps of the same kind and arm; of all, where there is none yet."""
    everything = [seconds for times in spent.values() for seconds in times]
    if not everything:
        return None
    overall = mean(everything)
    means = {kind: mean(times) for kind, times in spent.items()}
    return sum(means.get((step.work, step.arm), overall) for step in steps)
