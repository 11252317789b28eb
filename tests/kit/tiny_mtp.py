"""Tiny random MTP heads, in the layouts that they are published in.

Names and shapes are written down here a second time, from the format and not from the modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from dflash_suite.core.checkpoint.target_config import TargetConfig, read_target_config
from dflash_suite.core.options import MtpHidden
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.mtp.find import MtpSource, find_head
from dflash_suite.drafters.mtp.load import load_head
from tests.kit.tiny import HIDDEN, make_target, save_checkpoint

Layout = Literal["dense", "numbered", "fused", "fused-bmm", "switch"]
EXPERTS, EXPERT_WIDTH = 4, 24
MOE: dict[str, Any] = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_WIDTH,
    "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
}
LAYER = "layers.0."


def head_shapes(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Bare names and shapes of a head for the tiny hybrid (4 heads x 16, 2 kv heads)."""
    width = HIDDEN
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, 2 * width),
        "pre_fc_norm_embedding.weight": (width,),
        "pre_fc_norm_hidden.weight": (width,),
        "norm.weight": (width,),
        f"{LAYER}input_layernorm.weight": (width,),
        f"{LAYER}post_attention_layernorm.weight": (width,),
        f"{LAYER}self_attn.q_proj.weight": (2 * 4 * 16, width),
        f"{LAYER}self_attn.k_proj.weight": (2 * 16, width),
        f"{LAYER}self_attn.v_proj.weight": (2 * 16, width),
        f"{LAYER}self_attn.o_proj.weight": (width, 4 * 16),
        f"{LAYER}self_attn.q_norm.weight": (16,),
        f"{LAYER}self_attn.k_norm.weight": (16,),
    }
    inner = 2 * width if layout == "dense" else MOE["shared_expert_intermediate_size"]
    mlp = f"{LAYER}mlp." if layout == "dense" else f"{LAYER}mlp.shared_expert."
    shapes |= {
        f"{mlp}gate_proj.weight": (inner, width),
        f"{mlp}up_proj.weight": (inner, width),
        f"{mlp}down_proj.weight": (width, inner),
    }
    if layout != "dense":
        shapes[f"{LAYER}mlp.gate.weight"] = (EXPERTS, width)
        shapes[f"{LAYER}mlp.shared_expert_gate.weight"] = (1, width)
        for expert in range(EXPERTS):
            base = f"{LAYER}mlp.experts.{expert}."
            shapes[f"{base}gate_proj.weight"] = (EXPERT_WIDTH, width)
            shapes[f"{base}up_proj.weight"] = (EXPERT_WIDTH, width)
            shapes[f"{base}down_proj.weight"] = (width, EXPERT_WIDTH)
    return shapes


def head_tensors(
    layout: Layout = "dense", *, hf: bool = True, seed: int = 5
) -> dict[str, mx.array]:
    """Seeded float32 tensors by bare name; `hf`: norms are stored less one.

    The same seed gives the same head in every layout of experts and norms.
    """
    mx.random.seed(seed)
    tensors: dict[str, mx.array] = {}
    for name, shape in head_shapes(layout).items():
        noise = mx.random.normal(shape)
        if len(shape) == 1:
            tensors[name] = 0.1 * noise if hf else 1.0 + 0.1 * noise
        else:
            tensors[name] = noise * (2.0 / shape[-1] ** 0.5)
    if layout not in ("dense", "numbered"):
        tensors = _stack(tensors, layout)
    mx.eval(tensors)
    return tensors


def _stack(tensors: dict[str, mx.array], layout: Layout) -> dict[str, mx.array]:
    base = f"{LAYER}mlp."
    stacks = {
        projection: mx.stack(
            [tensors.pop(f"{base}experts.{e}.{projection}.weight") for e in range(EXPERTS)]
        )
        for projection in ("gate_proj", "up_proj", "down_proj")
    }
    if layout == "switch":
        named = {f"{base}switch_mlp.{name}.weight": stack for name, stack in stacks.items()}
        return tensors | named
    fused = mx.concatenate([stacks["gate_proj"], stacks["up_proj"]], axis=1)
    down = stacks["down_proj"]
    if layout == "fused-bmm":
        fused, down = mx.contiguous(fused.swapaxes(1, 2)), mx.contiguous(down.swapaxes(1, 2))
    return tensors | {f"{base}experts.gate_up_proj": fused, f"{base}experts.down_proj": down}


def prefixed(tensors: dict[str, mx.array], prefix: str = "mtp.") -> dict[str, mx.array]:
    """Bare names with a prefix."""
    return {f"{prefix}{name}": array for name, array in tensors.items()}


def quantized(
    tensors: dict[str, mx.array], bits: int = 8, group_size: int = 32, mode: str = "affine"
) -> dict[str, mx.array]:
    """Every weight of two or more dimensions packed as mlx packs it; the router too."""
    packed: dict[str, mx.array] = {}
    for name, array in tensors.items():
        if array.ndim < 2 or array.shape[-1] % group_size:
            packed[name] = array
            continue
        parts: Any = mx.quantize(array, group_size, bits, mode=mode)
        names = ("weight", "scales", "biases")
        packed |= {
            name.removesuffix("weight") + part: value
            for part, value in zip(names, parts, strict=False)
        }
    return packed


def save_target(directory: Path, tensors: dict[str, mx.array] | None, **changes: Any) -> Path:
    """A tiny hybrid checkpoint, with a head's (prefixed) tensors in a second shard."""
    save_checkpoint(directory, **changes)
    if tensors is not None:
        mx.save_safetensors(str(directory / "model-mtp-shard.safetensors"), tensors)
    return directory


def tiny_target(directory: Path, seed: int = 0, **changes: Any) -> Target:
    """The target of `save_target`, without a forward check."""
    loaded = make_target("hybrid", seed=seed, **changes)
    return Target(loaded.backbone, read_target_config(directory))


def tiny_head(
    directory: Path,
    tensors: dict[str, mx.array] | None = None,
    hidden: MtpHidden = "post",
    **changes: Any,
) -> tuple[Target, MtpDrafter]:
    """A tiny target and its head, through files; `changes` are the target's."""
    save_target(directory, prefixed(head_tensors() if tensors is None else tensors), **changes)
    target = tiny_target(directory, **changes)
    return target, load_head(found(target.config), target, mx.float32, hidden)


def found(config: TargetConfig) -> MtpSource:
    """The head of a target that has one."""
    source = find_head(config)
    assert source is not None
    return source
