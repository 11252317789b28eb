"""What kind of checkpoint a directory holds, told by its config.json alone.

Dispatches on architectures, `dflash_config` and the keys that change the maths; never on
model_type or the repository's name (formats.md sections 0 and 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..core.errors import ConfigError, UnsupportedModel

DrafterKind = Literal["dflash", "dflash2"]

V2_ARCHITECTURES = ("DFlash2DraftModel", "Qwen3DFlash2DraftModel")
V2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def classify(raw: Mapping[str, Any], file: Path) -> DrafterKind:
    """`dflash` or `dflash2`; UnsupportedModel for anything else.

    Raises ConfigError where `architectures` is no list of names.
    """
    nested = raw.get("dflash_config")
    nested = nested if isinstance(nested, dict) else {}
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(n, str) for n in architectures):
        raise ConfigError(f"{file}: 'architectures' is {architectures!r}, expected a list of names")
    if any(name in V2_ARCHITECTURES for name in architectures) or any(
        nested.get(key) or raw.get(key) for key in V2_KEYS
    ):
        return "dflash2"
    if any(name.startswith("DFlash") for name in architectures) or nested:
        return "dflash"
    raise UnsupportedModel(
        f"{file} is no DFlash drafter: architectures {architectures or 'missing'} and no "
        "'dflash_config'. Give the drafter's directory to --drafter and the target's to --model"
    )
