"""A drafter's config.json: both generations of DFlash v1, and DFlash2.

Fields are looked up in `dflash_config` first, then at the top level. What
decides the maths has no default here: a missing key is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from ...core.checkpoint.bounds import check_bounds
from ...core.checkpoint.rope import Rope, RopeDefaults, read_rope
from ...core.checkpoint.target_config import refuse_other_kinds
from ...core.errors import ConfigError, UnsupportedModel
from ...core.json_values import Fields, checked, read_json
from .container import DrafterKind, classify, label_note
from .quantization import Quantization, read_quantization

LayerType = Literal["full_attention", "sliding_attention"]
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class SelectorConfig:
    """DFlash2's additions: grouped dynamic convolution and the candidate selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True)
class DrafterConfig:
    """Everything that a drafter's forward needs. Sizes in elements, block and window in rows."""

    path: Path
    kind: DrafterKind
    vocab_size: int
    num_target_layers: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: Rope
    max_position_embeddings: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    is_causal: bool | None
    attention_bias: bool
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    selector: SelectorConfig | None
    states_attention_bias: bool = True
    quantization: Quantization = field(default_factory=Quantization)
    label_note: str = ""

    @property
    def file(self) -> Path:
        """The config.json that these values came from."""
        return self.path / "config.json"

    def is_layer_causal(self, index: int) -> bool:
        """Whether block rows of layer `index` see only earlier block rows.

        Stated for all layers, or else sliding layers are causal and full ones bidirectional.
        """
        if self.is_causal is not None:
            return self.is_causal
        return self.layer_types[index] == "sliding_attention"

    @property
    def context_rows(self) -> int | None:
        """window - 1 where every layer slides, None where some layer sees everything."""
        if self.sliding_window is not None and set(self.layer_types) == {"sliding_attention"}:
            return self.sliding_window - 1
        return None


def read_drafter_config(directory: Path) -> DrafterConfig:
    """Read and check a drafter's config.json; weights are not looked at.

    Raises ModelNotFound, ConfigError, or UnsupportedModel for containers that are recognised and
    not run.
    """
    config = parse_drafter_config(directory)
    for check in CONTRADICTIONS:
        check(config)
    return config


def parse_drafter_config(directory: Path) -> DrafterConfig:
    """The typed values of config.json, before they are held against each other."""
    refuse_other_kinds(directory)
    file = directory / "config.json"
    raw = read_json(file)
    kind = classify(raw, file)
    nested = raw.get("dflash_config") or {}
    checked("object", f"{file}: 'dflash_config'", nested)
    check_bounds(file, {"dflash_config.": nested, "": raw})
    fields = Fields(file, (("dflash_config.", nested), ("", raw)))
    _require_trained_values(fields, raw)
    layers = fields.integer("num_hidden_layers")
    layer_types = _layer_types(fields, layers)
    causal = _causality(fields)
    return DrafterConfig(
        path=directory,
        kind=kind,
        vocab_size=fields.integer("vocab_size"),
        num_target_layers=fields.integer("num_target_layers"),
        hidden_size=fields.integer("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=fields.integer("num_attention_heads"),
        num_key_value_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        intermediate_size=fields.integer("intermediate_size"),
        rms_norm_eps=fields.number("rms_norm_eps", minimum=0.0),
        rope=_rope(file, raw),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        block_size=fields.integer("block_size", minimum=2),
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        target_layer_ids=fields.integers("target_layer_ids"),
        layer_types=layer_types,
        sliding_window=_window(fields, raw, layer_types),
        is_causal=causal,
        attention_bias=fields.boolean("attention_bias") or False,
        input_embedding_scale=fields.number("input_embedding_scale", 1.0),
        output_multiplier=fields.number("output_multiplier", 1.0),
        final_logit_softcapping=fields.number("final_logit_softcapping", 0.0, 0.0) or None,
        selector=_selector(fields) if kind == "dflash2" else None,
        states_attention_bias=fields.raw("attention_bias") is not None,
        quantization=read_quantization(file, raw),
        label_note=label_note(raw, kind, file),
    )


TRAINED = ("block_size", "mask_token_id", "target_layer_ids")
"""What a drafter was trained with, which no default can stand for."""


def _require_trained_values(fields: Fields, raw: Mapping[str, Any]) -> None:
    """One ConfigError for all of them: missing, filled in with nonsense, or stated twice."""
    reads: tuple[Callable[[], object], ...] = (
        lambda: fields.integer("block_size", minimum=2),
        lambda: fields.integer("mask_token_id", minimum=0),
        lambda: fields.integers("target_layer_ids"),
        lambda: fields.integer("num_target_layers"),
        lambda: _rope(fields.path, raw),
        *(partial(fields.require_agreement, key) for key in TRAINED),
    )
    problems: list[str] = []
    for read in reads:
        try:
            read()
        except ConfigError as exc:
            problems.append(str(exc).removeprefix(f"{fields.path}: "))
    if problems:
        raise ConfigError(f"{fields.path}: {'; '.join(problems)}")


def _causality(fields: Fields) -> bool | None:
    """`causal` or `is_causal`, nested or not; None where nothing is stated."""
    stated = {
        label: value
        for key in ("causal", "is_causal")
        if (found := fields.raw(key)) is not None
        for label, value in [(found[0], fields.boolean(key))]
    }
    if len(set(stated.values())) > 1:
        raise ConfigError(f"{fields.path}: {stated} contradict each other; one of them is wrong")
    return next(iter(stated.values()), None)


def _rope(file: Path, raw: Mapping[str, Any]) -> Rope:
    """As read_rope, and every setting must have an effect: a drafter that was trained with one
    that is ignored would draft badly, and nothing would say so."""
    rope = read_rope(file, raw, RopeDefaults())
    if rope.ignored:
        raise UnsupportedModel(
            f"{file}: the rope states '{rope.ignored[0]}', which is not implemented for rope_type "
            f"'{rope.kind}'; its drafts would be bad and nothing would say so. Correct it, or give "
            "another drafter for this target"
        )
    return rope


def _layer_types(fields: Fields, layers: int) -> tuple[LayerType, ...]:
    found = fields.raw("layer_types")
    if found is None:
        if fields.boolean("use_sliding_window") and fields.raw("sliding_window") is not None:
            raise ConfigError(
                f"{fields.path}: 'layer_types' is missing, and 'use_sliding_window' is true: which "
                "layers slide has no safe default"
            )
        full: LayerType = "full_attention"
        return (full,) * layers
    label, value = found
    if not isinstance(value, list) or any(entry not in LAYER_TYPES for entry in value):
        raise fields.wrong_type(label, value, f"a list of {' or '.join(LAYER_TYPES)}")
    if len(value) != layers:
        raise ConfigError(
            f"{fields.path}: '{label}' has {len(value)} entries, but num_hidden_layers is {layers}"
        )
    return cast(tuple[LayerType, ...], tuple(value))


def _window(
    fields: Fields, raw: Mapping[str, Any], layer_types: tuple[LayerType, ...]
) -> int | None:
    if "sliding_attention" not in layer_types:
        return None
    if raw.get("use_sliding_window") is False:
        raise ConfigError(
            f"{fields.path}: 'layer_types' has sliding_attention but 'use_sliding_window' is "
            "false; one of them is wrong"
        )
    return fields.integer("sliding_window", minimum=2)


def _selector(fields: Fields) -> SelectorConfig:
    return SelectorConfig(
        conv_kernel_size=fields.integer("conv_kernel_size"),
        conv_group_size=fields.integer("conv_group_size"),
        selector_rank=fields.integer("selector_rank"),
        selector_top_k=fields.integer("selector_top_k"),
    )


def check_heads(config: DrafterConfig) -> None:
    """Query heads share key-value heads evenly, and rope turns pairs."""
    if config.num_attention_heads % config.num_key_value_heads:
        raise ConfigError(
            f"{config.file}: {config.num_attention_heads} attention heads are not a multiple of "
            f"{config.num_key_value_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise ConfigError(f"{config.file}: head_dim {config.head_dim} is odd; rope turns pairs")


def check_mask_id(config: DrafterConfig) -> None:
    """The mask has a row of the embedding."""
    if config.mask_token_id >= config.vocab_size:
        raise ConfigError(
            f"{config.file}: mask_token_id {config.mask_token_id} is outside the vocabulary of "
            f"{config.vocab_size}"
        )


def check_tap_order(config: DrafterConfig) -> None:
    """Taps are concatenated in this order."""
    taps = config.target_layer_ids
    if not taps or list(taps) != sorted(set(taps)) or taps[0] < 0:
        raise ConfigError(
            f"{config.file}: target_layer_ids {list(taps)} must be strictly increasing, from 0 "
            "up, and not empty"
        )


def check_selector(config: DrafterConfig) -> None:
    """Groups divide the width, and there are as many candidates as tokens at most."""
    selector = config.selector
    if selector is not None and config.hidden_size % selector.conv_group_size:
        raise ConfigError(
            f"{config.file}: hidden_size {config.hidden_size} is not a multiple of conv_group_size "
            f"{selector.conv_group_size}"
        )
    if selector is not None and selector.selector_top_k > config.vocab_size:
        raise ConfigError(
            f"{config.file}: selector_top_k {selector.selector_top_k} is above the vocabulary of "
            f"{config.vocab_size}"
        )


CONTRADICTIONS = (check_heads, check_mask_id, check_tap_order, check_selector)
"""Contradictions within one config.json; the doctor lists them one by one."""
