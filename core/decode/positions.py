"""Requests that are longer than the models were made for: they run, and go astray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import PromptTooLong


def beyond(target: Any, prompt_tokens: int, tokens: int) -> str | None:
    """What to say of a request whose tokens are more than the target's positions; None where
    they fit, or where config.json states no positions. target: a Target."""
    most = target.config.max_positions
    if most is None or prompt_tokens + tokens <= most:
        return None
    return (
        f"{prompt_tokens:,} prompt tokens and {tokens:,} more are beyond the {most:,} positions "
        f"that {target.config.file} states; the text goes astray there"
    )


def tokens_within(target: Any, prompt_tokens: int, tokens: int) -> tuple[int, str]:
    """(`tokens`, or as many as the target has positions for behind the prompt; what to say of
    that, empty where all are left).

    Raises PromptTooLong where there is none.
    """
    most = target.config.max_positions
    if most is None or prompt_tokens + tokens <= most:
        return tokens, ""
    if prompt_tokens >= most:
        raise PromptTooLong(prompt_tokens, most)
    left = int(most) - prompt_tokens
    return left, (
        f"max_tokens is {left:,} in place of {tokens:,}: the target has {most:,} positions, and "
        f"the prompt takes {prompt_tokens:,}"
    )


def beyond_drafters(drafters: Sequence[Any], prompt_tokens: int, tokens: int) -> list[str]:
    """The same of each drafter that states its positions: its drafts get bad, the ids stay."""
    needed = prompt_tokens + tokens
    stated = ((one, getattr(one, "max_positions", None)) for one in drafters)
    return [
        f"{needed:,} tokens are beyond the {most:,} positions that the {one.name} drafter was made "
        "for; fewer of its drafts are kept there"
        for one, most in stated
        if most is not None and needed > most
    ]
