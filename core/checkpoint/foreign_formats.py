"""Weights packed by other runtimes: what they are called, and what to take in their place.

One table for targets and drafters. Of targets mlx-lm reads some itself; a drafter is read by the
suite alone, which knows MLX's own packings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnsupportedModel
from ..json_values import shown

INSTEAD = "take the bfloat16 checkpoint, or a copy quantized by MLX"


def _never(block: Mapping[str, Any]) -> bool:
    return False


def _always(block: Mapping[str, Any]) -> bool:
    return True


def _fp8(block: Mapping[str, Any]) -> bool:
    blocks = block.get("weight_block_size")
    return bool(block.get("scale_fmt") == "ue8m0" and blocks == [32, 32])


def _compressed(block: Mapping[str, Any]) -> bool:
    known = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "pack-quantized")
    return block.get("format") in known


def _modelopt(block: Mapping[str, Any]) -> bool:
    settings = block.get("quantization", block)
    return bool(isinstance(settings, Mapping) and settings.get("quant_algo") == "NVFP4")


def _four_bits(block: Mapping[str, Any]) -> bool:
    return bool(block.get("bits", 4) == 4)


@dataclass(frozen=True)
class Format:
    """One packing. methods: values of `quant_method`; name: for people; mlx_lm_reads: whether
    mlx-lm's loader takes a target with this block."""

    methods: tuple[str, ...]
    name: str
    mlx_lm_reads: Callable[[Mapping[str, Any]], bool] = _never


FORMATS = (
    Format(("awq",), "AWQ", _four_bits),
    Format(("gptq",), "GPTQ", _four_bits),
    Format(("mxfp4",), "MXFP4", _always),
    Format(("mxfp8",), "MXFP8", _always),
    Format(("bitnet",), "BitNet", _always),
    Format(("fp8", "fbgemm_fp8", "finegrained_fp8"), "FP8", _fp8),
    Format(("compressed-tensors", "compressed_tensors"), "compressed-tensors", _compressed),
    Format(("modelopt", "modelopt_fp4"), "NVIDIA ModelOpt", _modelopt),
    Format(("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"), "bitsandbytes"),
    Format(("auto-round", "auto_round", "intel/auto-round"), "AutoRound"),
    Format(("hqq",), "HQQ"),
    Format(("quanto",), "Quanto"),
    Format(("torchao",), "torchao"),
    Format(("quark",), "AMD Quark"),
    Format(("aqlm",), "AQLM"),
    Format(("eetq",), "EETQ"),
    Format(("higgs",), "HIGGS"),
    Format(("spqr",), "SpQR"),
    Format(("vptq",), "VPTQ"),
    Format(("fp_quant",), "FP-Quant"),
)
KNOWN = {method: one for one in FORMATS for method in one.methods}


def stated_block(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`quantization_config` of another runtime; None where there is none, or it is MLX's own.

    MLX's converters repeat their `quantization` block under that key.
    """
    text = raw.get("text_config")
    nested = text.get("quantization_config") if isinstance(text, Mapping) else None
    block = raw.get("quantization_config") or nested
    if not isinstance(block, Mapping) or raw.get("quantization"):
        return None
    is_mlx = "quant_method" not in block and "bits" in block and "group_size" in block
    return None if is_mlx else block


def describe_format(block: Mapping[str, Any]) -> str:
    """What the block states, for people."""
    method = block.get("quant_method")
    known = KNOWN.get(str(method).lower())
    if known is not None:
        return f"packed by {known.name} (quant_method {shown(method)})"
    if method is None:
        return "packed in a way that its 'quantization_config' does not name (no quant_method)"
    return f"packed by quant_method {shown(method)}, which is not known here"


def refuse_foreign_target(raw: Mapping[str, Any], file: Path) -> None:
    """UnsupportedModel for a target that mlx-lm cannot read, with what to take in its place."""
    block = stated_block(raw)
    if block is None:
        return
    known = KNOWN.get(str(block.get("quant_method")).lower())
    if known is None or not known.mlx_lm_reads(block):
        raise UnsupportedModel(
            f"{file}: the target's weights are {describe_format(block)}, which mlx-lm does not "
            f"read: {INSTEAD}"
        )


def refuse_foreign_drafter(raw: Mapping[str, Any], file: Path) -> None:
    """UnsupportedModel for a drafter in any packing but MLX's own."""
    block = stated_block(raw)
    if block is not None:
        raise UnsupportedModel(
            f"{file}: the drafter's weights are {describe_format(block)}: {INSTEAD}"
        )
