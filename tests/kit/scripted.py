"""A drafter that follows a script: right, wrong, an error at one position, noise, illegal ids.

It implements core's Drafter Protocol, knows the continuation that plain decoding gives, and keeps
everything that it was shown, so that a test can compare it with what the target really fed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from dflash_suite.core.block import Block, resolve_block
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.options import GenerateOptions
from tests.kit.tiny import as_ids

Policy = Callable[[list[int], int], mx.array]
"""(right ids, round number from 0) -> draft ids (len(right),)."""


def all_right() -> Policy:
    """Every draft is what the target will say: full acceptance."""
    return lambda right, _: mx.array(right)


def all_wrong(vocab: int) -> Policy:
    """Every draft is off by one: no acceptance."""
    return lambda right, _: mx.array([(token + 1) % vocab for token in right])


def wrong_at(position: int, vocab: int) -> Policy:
    """Right but for one draft; a block with fewer drafts is right throughout."""

    def policy(right: list[int], _: int) -> mx.array:
        drafts = list(right)
        if position < len(drafts):
            drafts[position] = (drafts[position] + 1) % vocab
        return mx.array(drafts)

    return policy


def cycle(policies: Sequence[Policy]) -> Policy:
    """One policy after the other, a round each."""
    return lambda right, number: policies[number % len(policies)](right, number)


def mixed(vocab: int, drafts: int) -> Policy:
    """An error at each position in turn, then none: every acceptance from 0 to `drafts`."""
    return cycle([*(wrong_at(j, vocab) for j in range(drafts)), all_right()])


def random_ids(seed: int, vocab: int) -> Policy:
    """Noise, the same for the same seed."""

    def policy(right: list[int], number: int) -> mx.array:
        key = mx.random.key(seed * 100_003 + number)
        return mx.random.randint(0, vocab, (len(right),), key=key)

    return policy


def nan_scores(vocab: int) -> Policy:
    """What a broken drafter picks: argmax over scores that are all NaN."""

    def policy(right: list[int], _: int) -> mx.array:
        return mx.argmax(mx.full((len(right), vocab), float("nan")), axis=-1)

    return policy


def constant(token: int, position: int = 0) -> Policy:
    """`token` at one position (an illegal id, the mask id, eos), right elsewhere."""

    def policy(right: list[int], _: int) -> mx.array:
        drafts = list(right)
        if position < len(drafts):
            drafts[position] = token
        return mx.array(drafts)

    return policy


@dataclass
class ScriptedDrafter:
    """Drafts by `policy` from `continuation`, whose first id sits at position `start`.

    start: number of prompt tokens; continuation: the ids of plain decoding, at least as many as a
    test lets the loop emit plus one block (ids beyond its end are drafted as 0).
    gap_at_rounds: rounds after which the committed rows are thrown away, so that the next draft
    meets a gap.
    """

    policy: Policy
    continuation: Sequence[int]
    start: int
    trained_block_size: int = 8
    tap_ids: tuple[int, ...] = ()
    context_rows: int | None = None
    name: str = "scripted"
    gap_at_rounds: tuple[int, ...] = ()
    position: int = 0
    rounds: int = 0
    anchors: list[mx.array] = field(default_factory=list)
    draft_positions: list[int] = field(default_factory=list)
    draft_counts: list[int] = field(default_factory=list)
    reset_positions: list[int] = field(default_factory=list)
    observed: list[TargetRows] = field(default_factory=list)
    dropped: list[TargetRows] = field(default_factory=list)

    def block(self, options: GenerateOptions) -> Block:
        """A block of `trained_block_size` rows, or what the options ask for."""
        return resolve_block(self.trained_block_size, options.block_size)

    def reset(self, position: int) -> None:
        """Forget the context; a gap in the positions is legal only here."""
        self.position = position
        self.reset_positions.append(position)

    def observe(self, rows: TargetRows) -> None:
        """Keep the rows; their position, and the shapes of their arrays, must fit."""
        count = int(rows.token_ids.shape[0])
        assert count > 0, "observed no row"
        assert rows.position == self.position, f"{rows.position} != {self.position}"
        assert rows.hidden.shape[:2] == (1, count)
        if self.tap_ids:
            assert rows.taps is not None
            assert rows.taps.shape == (1, count, len(self.tap_ids) * rows.hidden.shape[2])
        else:
            assert rows.taps is None
        if self.rounds in self.gap_at_rounds and self.rounds > 0:
            self.dropped.append(rows)
            return
        self.observed.append(rows)
        self.position += count

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """`count` ids after the anchor, which sits at `position`."""
        assert anchor.shape == (1,) and 1 <= count < self.trained_block_size
        first = self.position + 1 - self.start
        right = [self._right(first + index) for index in range(count)]
        drafts = self.policy(right, self.rounds)
        self.rounds += 1
        self.anchors.append(anchor)
        self.draft_positions.append(self.position)
        self.draft_counts.append(count)
        return drafts

    def state(self) -> list[mx.array]:
        """The last rows observed."""
        if not self.observed:
            return []
        last = self.observed[-1]
        return [last.hidden] if last.taps is None else [last.hidden, last.taps]

    def _right(self, index: int) -> int:
        return self.continuation[index] if index < len(self.continuation) else 0

    @property
    def observed_ids(self) -> list[int]:
        """All token ids shown, in order (reads from the device)."""
        ids: list[int] = []
        for rows in self.observed:
            ids.extend(as_ids(rows.token_ids))
        return ids

    @property
    def observed_positions(self) -> list[int]:
        """The absolute position of each of `observed_ids`."""
        positions: list[int] = []
        for rows in self.observed:
            positions.extend(range(rows.position, rows.position + rows.token_ids.shape[0]))
        return positions

    def observed_taps(self) -> mx.array:
        """(1, n, taps * hidden): every tap row shown, in order."""
        return mx.concatenate(
            [rows.taps for rows in self.observed if rows.taps is not None], axis=1
        )

    def observed_hidden(self) -> mx.array:
        """(1, n, hidden): every row after the final norm shown, in order."""
        return mx.concatenate([rows.hidden for rows in self.observed], axis=1)
