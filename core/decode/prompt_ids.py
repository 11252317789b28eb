"""What the loop asks of a prompt's ids before anything is fed."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PromptError


def check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> list[int]:
    """The prompt as a list; PromptError where it is empty or has an id outside the vocabulary."""
    ids = [int(token) for token in prompt_ids]
    if not ids:
        raise PromptError("the prompt has no tokens; give some text to continue")
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        raise PromptError(
            f"prompt id {outside[0]} is outside the target's vocabulary of {vocab_size}"
        )
    return ids
