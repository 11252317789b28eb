"""The small trained pair that ships with the package, and how it is named."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import ModelNotFound

ROOT = Path(__file__).resolve().parent
TARGET = "bundled:target"
DRAFTER = "bundled:dflash2"
NAMES = ("target", "dflash", "dflash2")
PROMPTS_FILE = ROOT / "prompts.jsonl"
PROMPT = "def fibonacci(n):\n"
"""What `dflash generate` continues when it is given nothing at all."""


def bundled_directory(reference: str) -> Path | None:
    """The directory of a `bundled:NAME` reference; None for any other reference."""
    prefix, _, name = reference.partition(":")
    if prefix != "bundled":
        return None
    if name not in NAMES:
        known = ", ".join(f"bundled:{known}" for known in NAMES)
        raise ModelNotFound(f"{reference} is not bundled; there are {known}")
    return ROOT / name
