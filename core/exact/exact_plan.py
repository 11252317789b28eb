"""What an exact plan is, and how it is said: in words, in JSON, and in a stored probe.

Light, for whoever only shows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..probe_store import StoredProbe

PassWay = Literal["as they are", "fixed keys", "padded"]
"""How the passes of a plan run, in a word."""


@dataclass(frozen=True)
class ExactPlan:
    """How passes run so that rows are exact.

    width: the widest block; pads: every pass of the loop runs at exactly `width` rows; checked:
    measured in this run, or read from a stored probe; date: of the measurement (ISO); fixes_keys:
    attention over a fixed number of keys (always so where it pads).
    """

    width: int
    pads: bool
    checked: Literal["run", "stored"] = "run"
    date: str = ""
    fixes_keys: bool = False

    @property
    def has_fixed_keys(self) -> bool:
        """Whether caches are of a fixed size."""
        return self.pads or self.fixes_keys

    @property
    def way(self) -> PassWay:
        """How passes run, in a word."""
        if self.pads:
            return "padded"
        return "fixed keys" if self.fixes_keys else "as they are"

    def describe(self) -> str:
        """What it does to a pass."""
        if self.pads:
            return f"every pass at {self.width} rows"
        keys = "keys at a fixed number, " if self.fixes_keys else ""
        return f"{keys}blocks of up to {self.width} rows"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "width": self.width,
            "pads": self.pads,
            "fixes_keys": self.has_fixed_keys,
            "checked": self.checked,
            "date": self.date,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ExactPlan:
        """The plan of which `document` is the `to_dict`."""
        return cls(**document)

    def to_stored(self, details: Mapping[str, Any] | None = None) -> StoredProbe:
        """For later starts; details: all figures that it came with."""
        return StoredProbe(self.date, self.width, self.pads, self.fixes_keys, details=details or {})

    @classmethod
    def from_stored(cls, probe: StoredProbe) -> ExactPlan | None:
        """The plan of a stored probe; None where it holds none."""
        if probe.exact_width is None:
            return None
        return cls(
            probe.exact_width, probe.exact_pads, "stored", probe.date, probe.exact_fixes_keys
        )
