"""What packing costs: error of each tensor, agreement of drafts, tokens a round. No speeds.

Agreement is counted at the same places: the unpacked drafter drives a request and the packed one
is asked for the same blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx

from ...core.block import Block
from ...core.checkpoint.safetensors_headers import ITEM_BYTES
from ...core.checkpoint.weight_source import CHUNK_BYTES
from ...core.decode.drafter import Drafter, TargetRows
from ...core.decode.emit import Detokenizer
from ...core.decode.loop import Generation
from ...core.options import GenerateOptions
from ...core.regular_files import open_regular
from ...core.target.target import Target
from .build import Plan
from .file_format import Slab, read_fully, to_array


@dataclass(frozen=True)
class PackingError:
    """Error of one tensor. relative_rms: RMS of the error over RMS of the weights."""

    name: str
    relative_rms: float
    max_abs: float

    def to_dict(self) -> dict[str, Any]:
        """One element of `tensors` in `--json`."""
        return {"name": self.name, "relative_rms": self.relative_rms, "max_abs": self.max_abs}


@dataclass
class DraftAgreement:
    """Over all prompts; `same` and `drafts` count by draft position."""

    prompts: int = 0
    ids_equal: int = 0
    same: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    rounds_before: int = 0
    emitted_before: int = 0
    rounds_after: int = 0
    emitted_after: int = 0

    @property
    def agreement(self) -> float | None:
        """Share of drafts that packing left as they were; None where nothing was drafted."""
        return sum(self.same) / sum(self.drafts) if sum(self.drafts) else None

    @property
    def tokens_per_round_before(self) -> float | None:
        """Of the drafter as its file has it."""
        return self.emitted_before / self.rounds_before if self.rounds_before else None

    @property
    def tokens_per_round_after(self) -> float | None:
        """Of the packed drafter."""
        return self.emitted_after / self.rounds_after if self.rounds_after else None

    def to_dict(self) -> dict[str, Any]:
        """The `agreement` object of `--json`."""
        return {
            "prompts": self.prompts,
            "ids_equal": self.ids_equal,
            "agreement": self.agreement,
            "agreement_by_position": [
                same / drafts for same, drafts in zip(self.same, self.drafts, strict=True)
            ],
            "drafts": sum(self.drafts),
            "rounds_before": self.rounds_before,
            "rounds_after": self.rounds_after,
            "tokens_per_round_before": self.tokens_per_round_before,
            "tokens_per_round_after": self.tokens_per_round_after,
        }


class Shadowed:
    """A drafter that drives, and another that is asked the same and never heard."""

    def __init__(self, leader: Drafter, shadow: Drafter) -> None:
        self._leader = leader
        self._shadow = shadow
        self.blocks: list[tuple[mx.array, mx.array]] = []

    @property
    def name(self) -> str:
        """The leader's."""
        return self._leader.name

    def block(self, options: GenerateOptions) -> Block:
        """The leader's."""
        return self._leader.block(options)

    @property
    def tap_ids(self) -> tuple[int, ...]:
        """The leader's."""
        return self._leader.tap_ids

    @property
    def context_rows(self) -> int | None:
        """The leader's."""
        return self._leader.context_rows

    @property
    def position(self) -> int:
        """The leader's."""
        return self._leader.position

    def reset(self, position: int) -> None:
        """Reset both."""
        self._leader.reset(position)
        self._shadow.reset(position)

    def observe(self, rows: TargetRows) -> None:
        """Show both the same rows."""
        self._leader.observe(rows)
        self._shadow.observe(rows)

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """The leader's drafts; both are kept for comparison."""
        drafts = self._leader.draft(anchor, count)
        shadowed = self._shadow.draft(anchor, count)
        mx.eval(drafts, shadowed)
        self.blocks.append((drafts, shadowed))
        return drafts

    def state(self) -> list[mx.array]:
        """Both contexts."""
        return [*self._leader.state(), *self._shadow.state()]


def compare_drafters(
    target: Target,
    new_detokenizer: Callable[[], Detokenizer],
    before: Drafter,
    after: Drafter,
    prompts: Sequence[Sequence[int]],
    options: GenerateOptions,
) -> DraftAgreement:
    """Decode every prompt with `before` (and `after` in its shadow), then with `after` alone.

    Every round is speculative: a gate would leave out those of a drafter that loses time here.
    """
    result, options = DraftAgreement(), replace(options, gate=False)
    for prompt_ids in prompts:
        shadowed = Shadowed(before, after)
        first = _decode(target, prompt_ids, new_detokenizer(), shadowed, options)
        second = _decode(target, prompt_ids, new_detokenizer(), after, options)
        result.prompts += 1
        result.ids_equal += first.emitter.token_ids == second.emitter.token_ids
        result.rounds_before += first.stats.rounds
        result.emitted_before += first.stats.emitted
        result.rounds_after += second.stats.rounds
        result.emitted_after += second.stats.emitted
        for drafts, other in shadowed.blocks:
            _count(result, drafts == other)
    return result


def _decode(
    target: Target,
    prompt_ids: Sequence[int],
    detokenizer: Detokenizer,
    drafter: Drafter,
    options: GenerateOptions,
) -> Generation:
    generation = Generation(target, prompt_ids, detokenizer, drafter=drafter, options=options)
    for _ in generation:
        pass
    return generation


def _count(result: DraftAgreement, same: mx.array) -> None:
    for totals in (result.same, result.drafts):
        totals.extend([0] * (same.size - len(totals)))
    for position in range(same.size):
        result.drafts[position] += 1
        result.same[position] += bool(same[position])


def packing_errors(plan: Plan, slab: Slab) -> list[PackingError]:
    """Error of every packed tensor against the source, some rows at a time."""
    return [_packing_error(plan, slab, name) for name in sorted(plan.packed)]


def _packing_error(plan: Plan, slab: Slab, name: str) -> PackingError:
    info = plan.source.tensors[name]
    header = next(header for header in plan.source.headers if header.file == info.file)
    base = name.removesuffix(".weight")
    weight, scales, biases = (
        slab.read_tensor(base + part) for part in (".weight", ".scales", ".biases")
    )
    row_bytes = info.shape[1] * ITEM_BYTES[info.dtype]
    step = max(1, CHUNK_BYTES // row_bytes)
    squares, error_squares, max_abs = 0.0, 0.0, 0.0
    with open_regular(info.file) as stream:
        stream.seek(header.data_start + info.start)
        for start in range(0, info.shape[0], step):
            rows = slice(start, min(start + step, info.shape[0]))
            data = memoryview(bytearray((rows.stop - start) * row_bytes))
            read_fully(stream, data)
            true = to_array(data, info.dtype, (-1, info.shape[1])).astype(mx.float32)
            packed = mx.dequantize(
                weight[rows], scales[rows].astype(mx.float32), biases[rows].astype(mx.float32),
                group_size=plan.options.group_size, bits=plan.options.bits,
            )  # fmt: skip
            error = packed - true
            squares += float(mx.square(true).sum())
            error_squares += float(mx.square(error).sum())
            max_abs = max(max_abs, float(mx.abs(error).max()))
    return PackingError(name, math.sqrt(error_squares / squares) if squares else 0.0, max_abs)
