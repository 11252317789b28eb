"""Defaults of a benchmark; the command's options read them from here."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import GenerateOptions, require_positive


@dataclass(frozen=True)
class BenchOptions:
    """How a benchmark is run. Sizes are in tokens.

    profile_prompts: prompts of the separate pass that is synchronised phase by phase;
    width_repeats: passes timed at each verify width (0: no widths).
    """

    max_tokens: int = 128
    repeats: int = 3
    max_prompts: int = 12
    prefill_step_size: int = GenerateOptions.prefill_step_size
    warmup_tokens: int = 32
    profile_prompts: int = 2
    width_repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("max_tokens", "repeats", "max_prompts", "prefill_step_size", "warmup_tokens"):
            require_positive(name, getattr(self, name))
