"""What a benchmark is made of: arms, prompts, and one sample per decoded answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..decode.drafter import Drafter
from ..options import GenerateOptions
from ..stats import FinishReason, GenerationStats


@dataclass(frozen=True)
class Arm:
    """One way to decode; a plain arm has no drafter. reserve: what the gate, where it is on, tries
    after the drafter. settings: what a reader must know, in print order: route, drafter, ..."""

    name: str
    drafter: Drafter | None
    reserve: Drafter | None
    options: GenerateOptions
    settings: Mapping[str, Any]

    @property
    def is_plain(self) -> bool:
        """True where every pass yields one token."""
        return self.drafter is None


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt as ids, so that every arm and every tool can be given the same one."""

    name: str
    kind: str
    ids: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """Hash of the ids."""
        return hash_ids(self.ids)


@dataclass(frozen=True)
class Sample:
    """One measured answer: arm and prompt by index, the repeat (from 0), and its place within
    the pair or group of arms that was run back to back."""

    arm: int
    prompt: int
    repeat: int
    place: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats

    @property
    def total_sec(self) -> float:
        """Prefill and decoding, first to last token."""
        return (self.stats.ttft_sec or 0.0) + self.stats.decode_sec

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first, over decoding time; None where there was none."""
        return self.stats.tokens_per_second

    @property
    def end_to_end_tokens_per_second(self) -> float | None:
        """All tokens over prefill and decoding; None where no time passed."""
        return len(self.token_ids) / self.total_sec if self.total_sec > 0 else None

    @property
    def passes(self) -> int:
        """Rounds and plain steps, prefill not counted."""
        return self.stats.rounds + self.stats.plain_steps


def hash_ids(ids: Sequence[int]) -> str:
    """sha256 over the ids in decimal, joined by commas."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
