"""Does this drafter fit this target? From the two config.json files, before weights are opened.

The one set of guards: the loaders enforce it, and the doctor lists it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.checkpoint.families import canonical_type, require_supported
from ..core.checkpoint.target_config import (
    TargetConfig,
    read_target_config,
    refuse_other_kinds,
)
from ..core.errors import CheckpointError, DrafterMismatch, UnsupportedModel
from ..core.json_values import Fields, read_json
from .dflash.config import DrafterConfig
from .dflash.container import classify, drafter_signs


def open_target_config(directory: Path) -> TargetConfig:
    """A target's config; a directory of another kind says what it is.

    Raises ModelNotFound, ConfigError or UnsupportedModel.
    """
    refuse_other_kinds(directory)
    check_is_target(read_json(directory / "config.json"), directory / "config.json")
    return read_target_config(directory)


def check_is_target(raw: Mapping[str, Any], file: Path) -> str:
    """The model_type of a target's config.json; UnsupportedModel for a drafter's, or another."""
    try:
        kind = f"a {classify(raw, file)} drafter"
    except CheckpointError as exc:  # no drafter that is run
        if signs := drafter_signs(raw):
            raise UnsupportedModel(
                f"{file} belongs to a drafter and not to a target ({', '.join(signs)}), and as a "
                f"drafter: {exc}"
            ) from exc
        label, model_type = Fields(file, (("", raw),)).require("model_type")
        if not isinstance(model_type, str):
            raise Fields(file, ()).wrong_type(label, model_type, "a name") from None
        require_supported(model_type, file, raw)
        return canonical_type(model_type)
    raise UnsupportedModel(
        f"{file} is {kind} and not a target: give its directory to --drafter, and the "
        "model that it was trained for as the target"
    )


ADVICE = (
    "give the drafter that was trained for this target, or the target that this drafter was "
    "trained for"
)


def check_vocab(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Embedding and head are the target's own, so the vocabularies must be equal."""
    if drafter.vocab_size != target.vocab_size:
        raise DrafterMismatch(
            f"{drafter.kind} drafter vocab {drafter.vocab_size} != target {target.vocab_size}"
            + _where(target, drafter)
        )


def check_layer_count(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Taps were trained on a target of this depth."""
    if drafter.num_target_layers != target.num_hidden_layers:
        raise DrafterMismatch(
            f"{drafter.kind} drafter expects {drafter.num_target_layers} target layers, target "
            f"has {target.num_hidden_layers}" + _where(target, drafter)
        )


def check_hidden_size(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Tap rows and embeddings have the target's width."""
    if drafter.hidden_size != target.hidden_size:
        raise DrafterMismatch(
            f"{drafter.kind} drafter hidden size {drafter.hidden_size} != target "
            f"{target.hidden_size}" + _where(target, drafter)
        )


def check_taps(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Every tap is a layer of the target."""
    last = drafter.target_layer_ids[-1]
    if last >= target.num_hidden_layers:
        raise DrafterMismatch(
            f"{drafter.kind} drafter taps layer {last}, but the target's layers are "
            f"0..{target.num_hidden_layers - 1} (ids count from 0; an export that counts from 1 "
            "needs each lowered by one)" + _where(target, drafter)
        )


GUARDS = (check_vocab, check_layer_count, check_hidden_size, check_taps)
"""In this order, so that the plainest mistake is named first."""


def check_pair(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Raise the first DrafterMismatch, in the order of GUARDS."""
    for guard in GUARDS:
        guard(target, drafter)


def _where(target: TargetConfig, drafter: DrafterConfig) -> str:
    return f" ({drafter.file} against {target.file}); {ADVICE}"
