"""Two arms over the same prompts: ratios of neighbours, per prompt and together, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .speed import BreakEven, Ratio, Spread, Verdict, compare_pairs, spread_of
from .types import Sample

Speed = Callable[[Sample], float | None]
Key = tuple[int, int]
"""(prompt, repeat): the samples of one key ran back to back."""


@dataclass(frozen=True)
class PromptRow:
    """One prompt's ratios, second arm over first; a loser is slower at every repeat."""

    prompt: int
    decode: Spread | None
    end_to_end: Spread | None

    @property
    def loses(self) -> bool:
        """End to end, no repeat was as fast as the first arm."""
        return self.end_to_end is not None and self.end_to_end.high < 1.0

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "prompt": self.prompt,
            "decode": self.decode.to_dict() if self.decode else None,
            "end_to_end": self.end_to_end.to_dict() if self.end_to_end else None,
            "loses": self.loses,
        }


@dataclass(frozen=True)
class Comparison:
    """Arm `second` against arm `first`, by index. The verdict is on end-to-end time: a win in
    decoding that prefill eats is not a win. Rows are of every prompt, ratios are of those of the
    headline."""

    first: int
    second: int
    decode: Ratio | None
    end_to_end: Ratio | None
    rows: tuple[PromptRow, ...]
    break_even: BreakEven | None
    ids_differ: bool

    @property
    def verdict(self) -> Verdict:
        """On end-to-end time."""
        return self.end_to_end.verdict if self.end_to_end else "too few pairs"

    @property
    def flagged(self) -> bool:
        """A speed-up beside other greedy ids: not the same work."""
        return self.ids_differ and self.verdict == "faster"

    def to_dict(self) -> dict[str, Any]:
        """An element of `comparisons` of `--json`."""
        return {
            "first": self.first,
            "second": self.second,
            "verdict": self.verdict,
            "end_to_end": self.end_to_end.to_dict() if self.end_to_end else None,
            "decode": self.decode.to_dict() if self.decode else None,
            "break_even": self.break_even.to_dict() if self.break_even else None,
            "ids_differ": self.ids_differ,
            "flagged": self.flagged,
            "prompts": [row.to_dict() for row in self.rows],
        }


def compare_arms(
    first: int,
    second: int,
    samples: Sequence[Sample],
    prompts: Sequence[int],
    headline: Sequence[int],
    ids_differ: bool,
) -> Comparison:
    """samples: of complete groups; prompts: those with a row; headline: those that count."""
    left, right = samples_of(samples, first), samples_of(samples, second)
    decode = _ratios(left, right, lambda sample: sample.decode_tokens_per_second)
    total = _ratios(left, right, lambda sample: sample.end_to_end_tokens_per_second)
    rows = tuple(
        PromptRow(prompt, spread_of(decode.get(prompt, [])), spread_of(total.get(prompt, [])))
        for prompt in prompts
    )
    return Comparison(
        first,
        second,
        compare_pairs([decode.get(prompt, []) for prompt in headline]),
        compare_pairs([total.get(prompt, []) for prompt in headline]),
        rows,
        _break_even(left, right, headline),
        ids_differ,
    )


def samples_of(samples: Sequence[Sample], arm: int) -> dict[Key, Sample]:
    """An arm's samples by (prompt, repeat)."""
    return {(one.prompt, one.repeat): one for one in samples if one.arm == arm}


def complete_groups(samples: Sequence[Sample], arms: int) -> list[Sample]:
    """The samples whose neighbours are all there: an interrupted group counts for no arm."""
    counts: dict[Key, int] = {}
    for sample in samples:
        key = (sample.prompt, sample.repeat)
        counts[key] = counts.get(key, 0) + 1
    return [sample for sample in samples if counts[sample.prompt, sample.repeat] == arms]


def seconds_per_pass(samples: dict[Key, Sample], prompts: Sequence[int]) -> float | None:
    """Decoding time over passes, each prompt by the median of its repeats."""
    seconds, passes = 0.0, 0
    for prompt in prompts:
        mine = [sample for (index, _), sample in samples.items() if index == prompt]
        if mine:
            seconds += median(sample.stats.decode_sec for sample in mine)
            passes += mine[0].passes
    return seconds / passes if passes else None


def tokens_per_pass(samples: dict[Key, Sample], prompts: Sequence[int]) -> float | None:
    """Tokens after the first over passes, each prompt once."""
    mine = [sample for (prompt, repeat), sample in samples.items() if not repeat]
    mine = [sample for sample in mine if sample.prompt in prompts]
    passes = sum(sample.passes for sample in mine)
    return sum(sample.stats.decoded_tokens for sample in mine) / passes if passes else None


def _ratios(
    left: dict[Key, Sample], right: dict[Key, Sample], speed: Speed
) -> dict[int, list[float]]:
    """Per prompt, right over left at each repeat."""
    found: dict[int, list[float]] = {}
    for key in sorted(left.keys() & right.keys()):
        before, after = speed(left[key]), speed(right[key])
        if before is not None and after is not None:
            found.setdefault(key[0], []).append(after / before)
    return found


def _break_even(
    left: dict[Key, Sample], right: dict[Key, Sample], prompts: Sequence[int]
) -> BreakEven | None:
    times = seconds_per_pass(left, prompts), seconds_per_pass(right, prompts)
    tokens = tokens_per_pass(left, prompts), tokens_per_pass(right, prompts)
    if times[0] and times[1] and tokens[0] and tokens[1]:
        return BreakEven(times[1] / times[0], tokens[1] / tokens[0])
    return None
