"""Rows of a verify block, adapted to what its drafts are worth.

The share of a block that is emitted proposes half or twice the rows (requirements.md section 2);
realized time decides, because rows that cost almost nothing are worth keeping at any share.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AdaptSettings:
    """Shares are emitted tokens / block rows; `keep` is the weight of the old value."""

    min_rows: int = 2
    keep: float = 0.5
    grow_at: float = 0.75
    shrink_at: float = 0.5
    trial_rounds: int = 8
    first_ban_rounds: int = 48
    max_ban_rounds: int = 768


@dataclass
class Record:
    """What a block size brought: seconds and tokens of its recent rounds, newest last."""

    rounds: list[tuple[float, int]] = field(default_factory=list)
    ban_rounds: int = 0
    banned_until: int = 0

    def sec_per_token(self) -> float:
        """Mean over the rounds kept."""
        return sum(sec for sec, _ in self.rounds) / sum(tokens for _, tokens in self.rounds)


class AdaptiveBlock:
    """The block size of one drafter, from its trained size down to two rows."""

    def __init__(self, max_rows: int, settings: AdaptSettings | None = None) -> None:
        self.settings = settings or AdaptSettings()
        self.max_rows = max_rows
        self.rows = max_rows
        self.share = 1.0
        self._count = 0
        self._before: int | None = None
        self._records: dict[int, Record] = {}

    def record(self, tokens: int, rows: int, elapsed_sec: float) -> None:
        """One round of `rows` rows that emitted `tokens`; a block cut short teaches nothing."""
        if rows != self.rows:
            return
        self._count += 1
        record = self._records.setdefault(rows, Record())
        record.rounds = [*record.rounds, (elapsed_sec, tokens)][-self.settings.trial_rounds :]
        keep = self.settings.keep
        self.share = keep * self.share + (1 - keep) * tokens / rows
        if self._before is not None:
            self._judge_trial(record, self._before)
            return
        proposed = self._proposed()
        if proposed == rows or self._count < self._records.get(proposed, Record()).banned_until:
            return
        if len(record.rounds) >= self.settings.trial_rounds:
            self._records[proposed] = Record(
                ban_rounds=self._records.get(proposed, Record()).ban_rounds
            )
            self._before, self.rows = rows, proposed

    def _proposed(self) -> int:
        if self.share >= self.settings.grow_at:
            return min(2 * self.rows, self.max_rows)
        if self.share <= self.settings.shrink_at:
            return max(self.rows // 2, min(self.settings.min_rows, self.max_rows))
        return self.rows

    def _judge_trial(self, record: Record, before: int) -> None:
        """Stay at the new size, or go back and try it again only after a growing while."""
        if len(record.rounds) < self.settings.trial_rounds:
            return
        self._before = None
        if record.sec_per_token() <= self._records[before].sec_per_token():
            record.ban_rounds = 0
            return
        ban = min(
            max(2 * record.ban_rounds, self.settings.first_ban_rounds),
            self.settings.max_ban_rounds,
        )
        record.ban_rounds, record.banned_until = ban, self._count + ban
        self.rows, self.share = before, 1.0
