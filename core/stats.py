"""What the loop yields and counts; typed data only, no text formatting.

Terms: `accepted` = drafts kept; `accept_length` = tokens emitted by a round (accepted
plus the target's own token, after cuts); the first token comes from the prefill and belongs to no
round; plain steps are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]
PHASES = ("draft", "verify", "accept", "rollback")


@dataclass(frozen=True)
class PrefillProgress:
    """`done` of `total` prompt tokens are in the cache."""

    done: int
    total: int


@dataclass(frozen=True)
class Chunk:
    """Tokens that were committed, and the text that they let out (text may lag for UTF-8)."""

    text: str
    token_ids: tuple[int, ...]
    accepted: int = 0


@dataclass(frozen=True)
class Finished:
    """The last event of every run."""

    reason: FinishReason


Event = PrefillProgress | Chunk | Finished


class RoundRates:
    """The two rates of speculative rounds, from the counts of whoever has them."""

    rounds: int
    drafted: int
    accepted: int
    emitted: int

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens of speculative rounds per round; None where there was no round."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def accept_rate(self) -> float | None:
        """Share of judged drafts that were kept, no measure of quality across block sizes; None
        where nothing was judged."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass
class GenerationStats(RoundRates):
    """Counts of one request; times in seconds, memory in bytes.

    `drafted` counts the drafts that were judged, i.e. those left after a cut at eos, a stop
    string or max_tokens: drafted == sum(trials), accepted == sum(accepts). `discarded` counts
    the verified drafts that a cut threw away. `reached[i]` counts the rounds that judged draft i
    after keeping every draft before it, so accepts[i] / reached[i] is a conditional rate.
    `rounds_by_route` counts rounds by drafter, and plain steps as `none`.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    discarded: int = 0
    plain_steps: int = 0
    target_passes: int = 0
    drafter_resets: int = 0
    rounds_by_route: dict[str, int] = field(default_factory=dict)
    accepts: list[int] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)
    ttft_sec: float | None = None
    decode_sec: float = 0.0
    decoded_tokens: int = 0
    peak_memory_bytes: int = 0
    profiled: bool = False
    phase_sec: dict[str, float] = field(default_factory=dict)

    def count_route(self, route: str) -> None:
        """One round or plain step on `route`."""
        self.rounds_by_route[route] = self.rounds_by_route.get(route, 0) + 1

    def count_round(self, proposed: int, accepted: int, accept_length: int) -> None:
        """Record one speculative round, after its cuts.

        `accept_length <= accepted` means a cut inside the drafts: only `accept_length` of them
        were left to be judged, and all of those were right.
        """
        kept = min(accepted, accept_length)
        judged = proposed if accept_length > accepted else accept_length
        self.rounds += 1
        self.drafted += judged
        self.discarded += proposed - judged
        self.accepted += kept
        self.emitted += accept_length
        self.accept_lengths.append(accept_length)
        for totals, count in (
            (self.trials, judged),
            (self.accepts, kept),
            (self.reached, min(kept + 1, judged)),
        ):
            totals.extend([0] * (proposed - len(totals)))
            for position in range(count):
                totals[position] += 1

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed after the first token; None where there was no further token, and in a
        profiled pass, whose waits are not those of a real run."""
        if self.profiled or self.decoded_tokens == 0 or self.decode_sec <= 0:
            return None
        return self.decoded_tokens / self.decode_sec

    def to_dict(self) -> dict[str, Any]:
        """The `stats` object of `--json`."""
        return {
            "reused_tokens": self.reused_tokens,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "discarded": self.discarded,
            "plain_steps": self.plain_steps,
            "target_passes": self.target_passes,
            "drafter_resets": self.drafter_resets,
            "rounds_by_route": self.rounds_by_route,
            "tokens_per_round": self.tokens_per_round,
            "accept_rate": self.accept_rate,
            "accepts": self.accepts,
            "trials": self.trials,
            "accept_lengths": self.accept_lengths,
            "tokens_per_second": self.tokens_per_second,
            "ttft_sec": self.ttft_sec,
            "peak_memory_bytes": self.peak_memory_bytes,
            **({"phase_sec": self.phase_sec} if self.phase_sec else {}),
        }
