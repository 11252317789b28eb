"""How a token is chosen: the defaults of sampling, penalties and bias."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .errors import OptionError


@dataclass(frozen=True)
class SamplingOptions:
    """How a token is chosen. Temperature 0 is greedy, whatever generation_config says.

    top_k 0, top_p 1, min_p 0, repetition_penalty 1 and the other penalties at 0 are off.
    penalty_window: tokens back that a penalty looks at. logit_bias: (token id, addend) pairs.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 20
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise OptionError(f"temperature must be 0 or a positive number, got {self.temperature}")
        if self.top_k < 0:
            raise OptionError(f"top_k must be 0 (off) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"min_p must be between 0 and 1, got {self.min_p}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be between 0 and 2**64 - 1, got {self.seed}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise OptionError(
                f"repetition_penalty must be a positive number, got {self.repetition_penalty}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) < float("inf"):
                raise OptionError(f"{name} must be a finite number, got {getattr(self, name)}")
        if self.penalty_window < 1:
            raise OptionError(f"penalty_window must be at least 1, got {self.penalty_window}")
        if any(token < 0 or not abs(bias) < float("inf") for token, bias in self.logit_bias):
            raise OptionError("logit_bias takes token ids from 0 up and finite numbers")

    @property
    def greedy(self) -> bool:
        """True where nothing is drawn."""
        return self.temperature == 0

    @property
    def repeatable(self) -> bool:
        """True where an explicit seed must give the same output again, whatever the clock says."""
        return not self.greedy and self.seed is not None

    def idle(self) -> list[str]:
        """What to say of options that were given and cannot act, a line each."""
        default = SamplingOptions()
        drawn = ("top_k", "top_p", "min_p", "seed")
        given = [name for name in drawn if getattr(self, name) != getattr(default, name)]
        notes = []
        if self.greedy and given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            verb = "does" if len(given) == 1 else "do"
            notes.append(f"{named} {verb} nothing without a temperature: give --temperature too")
        penalties = (self.repetition_penalty != 1, self.presence_penalty, self.frequency_penalty)
        if self.penalty_window != default.penalty_window and not any(penalties):
            notes.append("--penalty-window does nothing without a penalty")
        return notes

    def to_dict(self) -> dict[str, object]:
        """The `sampling` object of `--json`."""
        return {**asdict(self), "logit_bias": {str(token): bias for token, bias in self.logit_bias}}
