"""Which drafts are kept: pure functions over ids that were already read from the device."""

from __future__ import annotations

from collections.abc import Sequence


def accept_prefix(drafts: Sequence[int], choices: Sequence[int]) -> list[int]:
    """The round's tokens: the longest right prefix of `drafts`, then the target's own choice.

    `choices[i]` is the target's token after row i, so there is one more than there are drafts;
    the result has 1..len(drafts)+1 tokens.
    """
    if len(choices) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} choices, got {len(choices)}")
    accepted = count_accepted(drafts, choices)
    return [*drafts[:accepted], choices[accepted]]


def count_accepted(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """How many leading drafts equal the target's choices."""
    for index, draft in enumerate(drafts):
        if draft != choices[index]:
            return index
    return len(drafts)
