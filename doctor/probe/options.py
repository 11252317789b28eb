"""How much `dflash doctor --probe` measures; light, for the command to read."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.checkpoint.target_config import TargetConfig
from ...core.errors import OptionError


@dataclass(frozen=True)
class ProbeOptions:
    """Sizes in tokens.

    contexts: tokens in the cache; widths: rows of a pass; agreement_tokens: compared a width;
    repeats: of every time; prompts, max_tokens: of the answers that show acceptance.
    """

    contexts: tuple[int, ...] = (64, 2000, 8000)
    widths: tuple[int, ...] = tuple(range(1, 17))
    agreement_tokens: int = 32
    repeats: int = 7
    prompts: int = 4
    max_tokens: int = 96


CPU_OPTIONS = ProbeOptions((64,), agreement_tokens=16, repeats=3, max_tokens=48)
"""Rows cost linear time there, and a long context minutes."""


def parse_contexts(text: str) -> tuple[int, ...]:
    """`64,2000` -> tokens of context, ascending, each at least 1. Raises OptionError."""
    try:
        contexts = {int(part) for part in text.split(",")}
    except ValueError:
        contexts = set()
    if not contexts or min(contexts) < 1:
        raise OptionError(f"--probe-contexts is {text!r}, expected numbers of tokens like 64,2000")
    return tuple(sorted(contexts))


def require_positions(context: int, config: TargetConfig) -> None:
    """OptionError for a context that is longer than the target's own positions."""
    most = config.max_positions
    if most is not None and context > most:
        raise OptionError(
            f"--probe-contexts asks for {context:,} tokens, and {config.file} states "
            f"max_position_embeddings {most:,}: give less"
        )
