"""The block of a verify pass: how many rows it has, and who chose that number."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import OptionError
from .options import DEFAULT_DRAFT_TOKENS, MAX_DEFAULT_BLOCK, MAX_DRAFT_TOKENS


@dataclass(frozen=True)
class StoredBlock:
    """The best block of a drafter by a stored probe (core/probe_store.py), and the day of that."""

    rows: int
    date: str


EXACT_SOURCE = "the widest that is exact here"


@dataclass(frozen=True)
class Block:
    """Rows of a verify pass: asked for, trained, and used (1 where there is no drafter).

    `trained` is None where no block was trained: an MTP head is chained. source: who chose the
    number of rows.
    """

    requested: int | None
    trained: int | None
    effective: int
    source: str = ""

    @property
    def draft_tokens(self) -> int:
        """Most drafts a round: the block less its anchor."""
        return self.effective - 1

    def describe(self) -> str:
        """For the footer; empty where nothing is drafted."""
        if self.trained is None:
            chosen = f" ({self.source})" if self.source else ""
            drafts = f", up to {self.draft_tokens} drafts a round{chosen}"
            return drafts if self.draft_tokens else ""
        return f", block {self.effective} of {self.trained} trained ({self.source})"

    def to_dict(self) -> dict[str, int | str | None]:
        """The `block` object of `--json`."""
        return {
            "requested": self.requested,
            "trained": self.trained,
            "effective": self.effective,
            "source": self.source or None,
        }


NO_BLOCK = Block(None, None, 1)
"""A plain step: the anchor alone."""


def resolve_block(trained: int, requested: int | None, stored: StoredBlock | None = None) -> Block:
    """The block that a drafter trained at `trained` rows runs with: the one asked for, else the
    stored probe's, else min(trained, 7).

    Never above the trained size: rows beyond the trained block were never trained to be right, so
    asking for more is an error and not a silent cut.
    """
    if requested is not None:
        if requested > trained:
            raise OptionError(
                f"block_size {requested} is above the {trained} that this drafter was trained for; "
                f"give 2..{trained}"
            )
        return Block(requested, trained, requested, "as asked")
    if stored is not None:
        rows = min(trained, stored.rows)
        return Block(None, trained, rows, f"stored probe of {stored.date}")
    default = f"default min(trained, {MAX_DEFAULT_BLOCK})"
    return Block(None, trained, min(trained, MAX_DEFAULT_BLOCK), default)


def resolve_chain(requested: int | None, stored: StoredBlock | None = None) -> Block:
    """The block of an MTP head, which is chained for the drafts that are asked for, else for the
    stored probe's, else for 3."""
    if requested is not None:
        return Block(None, None, requested + 1, "as asked")
    if stored is not None:
        rows = min(MAX_DRAFT_TOKENS + 1, stored.rows)
        return Block(None, None, rows, f"stored probe of {stored.date}")
    return Block(None, None, DEFAULT_DRAFT_TOKENS + 1, "default")


def limit_block(block: Block, widest: int | None) -> Block:
    """A block of at most `widest` rows (None: any): a default is cut, and a size that was asked
    for is an OptionError, since cutting it would answer another question."""
    if widest is None or block.effective <= widest:
        return block
    if block.requested is not None:
        raise OptionError(
            f"block_size {block.requested} is above the exact width of this target on this device, "
            f"{widest} rows: give 2..{widest}, or run with --no-exact"
        )
    return replace(block, effective=widest, source=EXACT_SOURCE)
