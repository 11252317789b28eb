"""Figures of a benchmark, made of its samples; typed data and `to_dict`, no text.

Headline figures leave out prompts whose plain answer loops (they are counted and shown), and
nothing else. Accept counts take each prompt once, speeds every repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..stats import PHASES, GenerationStats
from .accept_profile import AcceptProfile, pool_profile
from .compare import Comparison, compare_arms, complete_groups, samples_of, seconds_per_pass
from .context_lengths import ContextRow, split_by_context
from .identity import Difference, Identity, first_difference, is_degenerate, top2_margin
from .runner import Bench
from .speed import Spread, spread_of
from .types import Arm, BenchPrompt, Sample, hash_ids


@dataclass(frozen=True)
class ArmReport:
    """One arm's figures. profile is None for a plain arm, whose tokens_per_round is 1.0; phases:
    seconds a pass by phase, with `other`, from the synchronised pass (None: not run)."""

    arm: Arm
    profile: AcceptProfile | None
    by_context: list[ContextRow]
    decode: Spread | None
    end_to_end: Spread | None
    ttft_sec: Spread | None
    pass_sec: float | None
    peak_memory_bytes: int
    finish_reasons: dict[str, int]
    phases: dict[str, float] | None
    identity: Identity
    samples: tuple[Sample, ...]

    @property
    def tokens_per_round(self) -> float | None:
        """1.0 for a plain arm; None where a drafting arm ran no round."""
        return 1.0 if self.profile is None else self.profile.tokens_per_round

    def to_dict(self) -> dict[str, Any]:
        """An element of `arms` of `--json`."""
        plain = {"accepts": None, "trials": None}
        return {
            "name": self.arm.name,
            "options": dict(self.arm.settings),
            "tokens_per_round": self.tokens_per_round,
            "accept": plain if self.profile is None else self.profile.to_dict(),
            "accept_by_context": [row.to_dict() for row in self.by_context],
            "tokens_per_second": _dict(self.decode),
            "end_to_end_tokens_per_second": _dict(self.end_to_end),
            "ttft_sec": _dict(self.ttft_sec),
            "pass_sec": self.pass_sec,
            "peak_memory_bytes": self.peak_memory_bytes,
            "finish_reasons": self.finish_reasons,
            "phase_sec_per_pass": self.phases,
            "identity": self.identity.to_dict(),
            "samples": [sample_dict(sample) for sample in self.samples],
        }


@dataclass(frozen=True)
class BenchReport:
    """Everything measured. degenerate, measured: prompts by index; partial: Ctrl-C ended it."""

    arms: tuple[ArmReport, ...]
    comparisons: tuple[Comparison, ...]
    prompts: tuple[BenchPrompt, ...]
    measured: tuple[int, ...]
    degenerate: tuple[int, ...]
    widths: dict[int, float]
    partial: bool

    @property
    def headline(self) -> list[int]:
        """Prompts that count: measured ones whose plain answer does not loop."""
        return [prompt for prompt in self.measured if prompt not in self.degenerate]

    def to_dict(self) -> dict[str, Any]:
        """The part of `--json` that comes from the measurement."""
        return {
            "partial": self.partial,
            "prompts": [
                {
                    "name": prompt.name,
                    "kind": prompt.kind,
                    "tokens": len(prompt.ids),
                    "sha256": prompt.sha256,
                    "measured": index in self.measured,
                    "degenerate": index in self.degenerate,
                }
                for index, prompt in enumerate(self.prompts)
            ],
            "arms": [arm.to_dict() for arm in self.arms],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "verify_width_sec": {str(rows): seconds for rows, seconds in self.widths.items()},
        }


def make_report(bench: Bench, against: int = 0) -> BenchReport:
    """Figures of a finished or interrupted benchmark; every arm is compared with arm `against`."""
    samples = complete_groups(bench.samples, len(bench.arms))
    measured = sorted({sample.prompt for sample in samples})
    loops = [
        prompt
        for prompt in measured
        if is_degenerate(bench.references[prompt], bench.prompts[prompt].ids)
    ]
    headline = [prompt for prompt in measured if prompt not in loops]
    margin = _margin(bench)
    arms = tuple(_arm(bench, index, samples, headline, margin) for index in range(len(bench.arms)))
    comparisons = tuple(
        compare_arms(
            against,
            index,
            samples,
            measured,
            headline,
            not (arms[index].identity.holds and arms[against].identity.holds),
        )
        for index in range(len(arms))
        if index != against
    )
    return BenchReport(
        arms,
        comparisons,
        tuple(bench.prompts),
        tuple(measured),
        tuple(loops),
        bench.widths,
        not bench.finished,
    )


def sample_dict(sample: Sample) -> dict[str, Any]:
    """A sample for `--json` and `--csv`, without its ids."""
    stats = sample.stats
    return {
        "prompt": sample.prompt,
        "repeat": sample.repeat,
        "place": sample.place,
        "tokens": len(sample.token_ids),
        "finish_reason": sample.finish_reason,
        "ttft_sec": stats.ttft_sec,
        "decode_sec": stats.decode_sec,
        "total_sec": sample.total_sec,
        "tokens_per_second": sample.decode_tokens_per_second,
        "end_to_end_tokens_per_second": sample.end_to_end_tokens_per_second,
        "rounds": stats.rounds,
        "plain_steps": stats.plain_steps,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "discarded": stats.discarded,
        "emitted": stats.emitted,
        "accepts": list(stats.accepts),
        "trials": list(stats.trials),
        "peak_memory_bytes": stats.peak_memory_bytes,
        "token_sha256": hash_ids(sample.token_ids),
    }


Margin = Callable[[Difference], float]


def _arm(
    bench: Bench, index: int, samples: Sequence[Sample], headline: Sequence[int], margin: Margin
) -> ArmReport:
    arm = bench.arms[index]
    mine = samples_of(samples, index)
    counted = [sample for (prompt, _), sample in mine.items() if prompt in headline]
    once = [sample.stats for sample in counted if sample.repeat == 0]
    return ArmReport(
        arm=arm,
        profile=None if arm.is_plain else pool_profile(once),
        by_context=split_by_context(once),
        decode=spread_of([sample.decode_tokens_per_second for sample in counted]),
        end_to_end=spread_of([sample.end_to_end_tokens_per_second for sample in counted]),
        ttft_sec=spread_of([sample.stats.ttft_sec for sample in counted]),
        pass_sec=seconds_per_pass(mine, headline),
        peak_memory_bytes=max((one.stats.peak_memory_bytes for one in counted), default=0),
        finish_reasons=dict(Counter(one.finish_reason for one in counted if one.repeat == 0)),
        phases=split_phases(bench.phases.get(index, [])),
        identity=_identity(bench, list(mine.values()), margin),
        samples=tuple(sample for sample in bench.samples if sample.arm == index),
    )


def split_phases(passes: Sequence[GenerationStats]) -> dict[str, float] | None:
    """Seconds a pass by phase; `other` is the rest of the wall time, so that they add up to it."""
    count = sum(stats.rounds + stats.plain_steps for stats in passes)
    if not count:
        return None
    split = {
        phase: sum(stats.phase_sec.get(phase, 0.0) for stats in passes) / count for phase in PHASES
    }
    wall = sum(stats.decode_sec for stats in passes) / count
    return {**split, "other": wall - sum(split.values())}


def _identity(bench: Bench, samples: Sequence[Sample], margin: Margin) -> Identity:
    """Every prompt's first answer against the plain one; repeats against each other."""
    answers: dict[int, list[tuple[int, ...]]] = {}
    for sample in sorted(samples, key=lambda one: (one.prompt, one.repeat)):
        answers.setdefault(sample.prompt, []).append(sample.token_ids)
    differences = []
    for prompt, found in answers.items():
        plain = bench.references[prompt]
        apart = ((ids, first_difference(plain, ids)) for ids in found)
        wrong = next(((ids, position) for ids, position in apart if position is not None), None)
        if wrong is not None:
            ids, position = wrong
            difference = Difference(
                prompt, position, _at(plain, position), _at(ids, position), None
            )
            differences.append(replace(difference, margin=margin(difference)))
    return Identity(
        len(answers),
        tuple(differences),
        tuple(prompt for prompt, found in answers.items() if len(set(found)) > 1),
        {prompt: hash_ids(found[0]) for prompt, found in answers.items()},
    )


def _margin(bench: Bench) -> Margin:
    """The target's top-2 margin where an answer left the plain one; computed once a place."""
    known: dict[tuple[int, int], float] = {}

    def margin(difference: Difference) -> float:
        place = difference.prompt, difference.position
        if place not in known:
            plain = bench.references[difference.prompt]
            ids = [*bench.prompts[difference.prompt].ids, *plain[: difference.position]]
            known[place] = top2_margin(bench.target, ids, bench.options.prefill_step_size)
        return known[place]

    return margin


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None


def _dict(spread: Spread | None) -> dict[str, float] | None:
    return spread.to_dict() if spread else None
