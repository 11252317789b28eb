"""Every kind of drafter over a tiny target with a handful of tokens, for statistics on draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dflash_suite.core.target.target import Target
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from tests.kit.tiny import make_target, prompt, with_eos
from tests.kit.tiny_drafter import make_drafter
from tests.kit.tiny_mtp import head_tensors, tiny_head

VOCAB = 8
PROMPT_IDS = prompt(6, vocab=VOCAB)
DrawingKind = Literal["dflash", "dflash2", "mtp"]
KINDS: tuple[DrawingKind, ...] = ("dflash", "dflash2", "mtp")


def small_pair(directory: Path, kind: DrawingKind) -> tuple[Target, DFlashDrafter | MtpDrafter]:
    """A target without end-of-sequence ids and its drafter, both of VOCAB tokens."""
    if kind == "mtp":
        target, head = tiny_head(directory, head_tensors(), vocab_size=VOCAB)
        return with_eos(target, ()), head
    target = make_target("hybrid", vocab_size=VOCAB)
    changes: dict[str, Any] = {"vocab_size": VOCAB, "mask_token_id": 1}
    if kind == "dflash2":
        changes["selector_top_k"] = 4
    return target, make_drafter(directory, kind, ends=target, **changes)
