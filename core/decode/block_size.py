"""Rows of a verify block, adapted to what its drafts are worth.

The share of a block that is emitted proposes half or twice the rows. Where speculation loses to
plain steps, half the rows are taken at once. Elsewhere realized time decides, after a trial: rows
that cost almost nothing are worth keeping at any share.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class AdaptSettings:
    """Shares are emitted tokens / block rows; `keep` is the weight of the old value."""

    min_rows: int = 2
    keep: float = 0.5
    grow_at: float = 0.75
    shrink_at: float = 0.5
    losing_rounds: int = 4
    losing_ratio: float = 0.7
    trial_rounds: int = 8
    first_ban_rounds: int = 48
    max_ban_rounds: int = 768


@dataclass(frozen=True)
class Trial:
    """A size under test, against `sec_per_token` of the size before it."""

    rows_before: int
    sec_per_token: float


class AdaptiveBlock:
    """The block size of one drafter, from its full size down to two rows.

    rows: where it begins, at most `max_rows`; None for there.
    """

    def __init__(
        self, max_rows: int, rows: int | None = None, settings: AdaptSettings | None = None
    ) -> None:
        self.settings = settings or AdaptSettings()
        self.max_rows = max_rows
        self.rows = max_rows if rows is None else min(rows, max_rows)
        self.share = 1.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=self.settings.trial_rounds)
        self._trial: Trial | None = None
        self._count = 0
        self._bans: dict[int, tuple[int, int]] = {}

    def record(
        self, tokens: int, rows: int, elapsed_sec: float, plain_sec: float | None = None
    ) -> None:
        """One round of `rows` rows that emitted `tokens`; a block cut short teaches nothing.

        plain_sec: a plain step's time, where it is known.
        """
        if rows != self.rows:
            return
        self._count += 1
        self._recent.append((elapsed_sec, tokens))
        keep = self.settings.keep
        self.share = keep * self.share + (1 - keep) * tokens / rows
        enough = len(self._recent) == self.settings.trial_rounds
        if self._trial is not None:
            if enough:
                self._judge(self._trial)
        elif self._is_losing(plain_sec):
            if self.share <= self.settings.shrink_at:
                self._change(self._half())
        elif enough:
            self._propose(plain_sec)

    def _is_losing(self, plain_sec: float | None) -> bool:
        if plain_sec is None or len(self._recent) < self.settings.losing_rounds:
            return False
        return self._sec_per_token() * self.settings.losing_ratio > plain_sec

    def _propose(self, plain_sec: float | None) -> None:
        """Begin a trial of another size: half where most drafts fail, twice the rows where
        speculation pays."""
        failing = self.share <= self.settings.shrink_at
        if not failing and plain_sec is not None and self._sec_per_token() > plain_sec:
            return
        rows = self._half() if failing else min(2 * self.rows, self.max_rows)
        _, banned_until = self._bans.get(rows, (0, 0))
        eager = self.share >= self.settings.grow_at or failing
        waited = eager or self._count >= self.settings.first_ban_rounds
        if rows != self.rows and waited and self._count >= banned_until:
            before, speed = self.rows, self._sec_per_token()
            self._change(rows)
            self._trial = Trial(before, speed)

    def _judge(self, trial: Trial) -> None:
        """Stay at the new size, or go back and try it again only after a growing while."""
        self._trial = None
        if self._sec_per_token() <= trial.sec_per_token:
            self._bans.pop(self.rows, None)
            return
        last, _ = self._bans.get(self.rows, (0, 0))
        ban = min(max(2 * last, self.settings.first_ban_rounds), self.settings.max_ban_rounds)
        self._bans[self.rows] = (ban, self._count + ban)
        self._change(trial.rows_before)

    def _change(self, rows: int) -> None:
        self.rows, self.share = rows, 1.0 if rows > self.rows else self.share
        self._recent.clear()

    def _half(self) -> int:
        return min(self.rows, max(self.rows // 2, self.settings.min_rows))

    def _sec_per_token(self) -> float:
        return sum(sec for sec, _ in self._recent) / sum(tokens for _, tokens in self._recent)
