"""What the loop asks of a drafter, as a Protocol: core knows no drafter by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx

from ..block import Block, limit_block
from ..errors import DraftError
from ..options import GenerateOptions
from .choose import Draws
from .sampling import Proposal


@dataclass(frozen=True)
class TargetRows:
    """Rows that the target has committed, in order.

    position: absolute position of the first row; token_ids: (n,) tokens fed at those rows;
    taps: (1, n, taps * hidden) layer outputs, or None where the drafter taps nothing;
    hidden: (1, n, hidden) after the target's final norm.
    """

    position: int
    token_ids: mx.array
    taps: mx.array | None
    hidden: mx.array

    def from_row(self, start: int) -> TargetRows:
        """The rows from `start` on."""
        return self._sliced(slice(start, None), self.position + start)

    def keep(self, count: int) -> TargetRows:
        """The first `count` rows."""
        return self._sliced(slice(0, count), self.position)

    def _sliced(self, rows: slice, position: int) -> TargetRows:
        taps = None if self.taps is None else self.taps[:, rows]
        return TargetRows(position, self.token_ids[rows], taps, self.hidden[:, rows])


@runtime_checkable
class Drafter(Protocol):
    """A source of drafts. Its quality can cost speed, never bytes.

    `position` is the absolute position that the next observed row must have: the loop resets a
    drafter whose position is not the target's, which costs acceptance only.
    """

    @property
    def name(self) -> str:
        """`dflash`, `dflash2`, `mtp`: shown as the route."""

    def block(self, options: GenerateOptions) -> Block:
        """Rows a round under these options; OptionError where they ask for what it cannot do."""

    @property
    def tap_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs are observed, in the file's order."""

    @property
    def context_rows(self) -> int | None:
        """Trailing rows that can still matter (window - 1), None where all of them do."""

    @property
    def position(self) -> int:
        """Absolute position of the next row to observe."""

    def reset(self, position: int) -> None:
        """Forget the context; the next row is at `position`."""

    def observe(self, rows: TargetRows) -> None:
        """Take in committed rows; lazy, nothing is read from the device."""

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        """`count` draft ids (count,) after the anchor (1,), which sits at `position`; lazy."""

    def state(self) -> list[mx.array]:
        """Arrays to evaluate when no draft is about to need them."""


@runtime_checkable
class DrawingDrafter(Drafter, Protocol):
    """A drafter that can also draw; one that cannot proposes its greedy draft as certain."""

    def propose(self, anchor: mx.array, count: int, draws: Draws) -> Proposal:
        """As draft, but drawn, with the distributions that the drafts were drawn from; lazy."""


@runtime_checkable
class RewindableDrafter(Drafter, Protocol):
    """A drafter whose context can be cut back; any other starts over, at the cost of acceptance."""

    def mark(self, *, lasting: bool = False) -> object:
        """What `return_to` needs; good until the next reset. lasting: however much is observed
        since, and for copies of this drafter too; a mark that holds arrays has `arrays()`."""

    def return_to(self, mark: object) -> None:
        """Forget every row observed since the mark."""


@runtime_checkable
class SharedDrafter(Drafter, Protocol):
    """A drafter that several generations may use side by side: they share its weights."""

    def session(self) -> Drafter:
        """The same drafter, with an empty context of its own."""


@runtime_checkable
class ForkingDrafter(SharedDrafter, Protocol):
    """A drafter whose context can be copied, so that two generations go on from one place."""

    def fork(self, mark: object) -> Drafter:
        """The same drafter with a copy of its context, as it was at a lasting mark."""


def check_proposal(name: str, proposal: Proposal, count: int) -> Proposal:
    """The proposal; DraftError unless its ids are a vector of at most `count` integers.

    Nothing is read from the device: what is read of other types would be taken for ids.
    """
    ids = proposal.ids
    is_vector = isinstance(ids, mx.array) and ids.ndim == 1 and 1 <= ids.shape[0] <= count
    if is_vector and mx.issubdtype(ids.dtype, mx.integer):
        return proposal
    found = f"{ids.dtype} of shape {ids.shape}" if isinstance(ids, mx.array) else repr(ids)
    raise DraftError(
        f"drafter {name} proposed {found}, expected a vector of 1 to {count} integer ids"
    )


def session_of(drafter: Drafter) -> Drafter:
    """The drafter for one generation; one that cannot be shared is used as it is."""
    return drafter.session() if isinstance(drafter, SharedDrafter) else drafter


def resolve_blocks(
    drafters: Sequence[Drafter], options: GenerateOptions, widest: int | None
) -> dict[str, Block]:
    """Each drafter's block under these options, of at most `widest` rows (None: any number).

    Raises OptionError for a size that was asked for and cannot be.
    """
    return {one.name: limit_block(one.block(options), widest) for one in drafters}
