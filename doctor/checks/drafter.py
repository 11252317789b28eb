"""A drafter alone: its container, its config.json against itself, its tensors."""

from __future__ import annotations

from ...drafters.dflash.config import check_heads, check_mask_id, check_selector, check_tap_order
from ...drafters.dflash.container import label_note
from ...drafters.dflash.layers import make_rope
from ..results import CheckResult
from ..units import readable
from .check import Check, Words, check
from .once import reach
from .slab import slab
from .subjects import DrafterSubject


@check(
    "drafter.kind",
    "a DFlash or DFlash2 drafter, as config.json and *.safetensors",
    "give a DFlash drafter; other containers: convert, or take the original repository",
)
def kind(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Swapped arguments, GGUF and foreign containers show here."""
    kind = drafter.kind
    said = label_note(drafter.raw, kind, drafter.file)
    return say.warned(said) if said else say.passed(kind)


@check(
    "drafter.config",
    "every key that decides the maths, of its type, stated once",
    "fetch config.json again, or correct the key that is named",
)
def config(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Keys, and how the block is masked."""
    found = drafter.parsed
    sliding = sum(kind == "sliding_attention" for kind in found.layer_types)
    causal = sum(found.is_layer_causal(layer) for layer in range(found.num_hidden_layers))
    window = f" ({sliding} sliding, window {found.sliding_window})" if sliding else ""
    return say.passed(
        f"{found.num_hidden_layers} layers{window}, block {found.block_size} = anchor and "
        f"{found.block_size - 1} drafts, {causal} of {found.num_hidden_layers} layers causal "
        "inside the block"
    )


@check(
    "drafter.heads",
    "query heads a multiple of key-value heads, an even head_dim",
    "correct num_attention_heads, num_key_value_heads or head_dim",
)
def heads(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Head geometry."""
    found = drafter.parsed
    check_heads(found)
    return say.passed(
        f"{found.num_attention_heads} heads, {found.num_key_value_heads} key-value heads, "
        f"{found.head_dim} each"
    )


@check(
    "drafter.mask",
    "a mask_token_id inside the vocabulary",
    "correct mask_token_id, or fetch config.json again",
)
def mask(say: Words, drafter: DrafterSubject) -> CheckResult:
    """It must have a row of the target's embedding."""
    check_mask_id(drafter.parsed)
    return say.passed(f"{drafter.parsed.mask_token_id} of {drafter.parsed.vocab_size}")


@check(
    "drafter.taps",
    "target_layer_ids that increase, from 0 up",
    "restore the order of the original config.json: it is that of the weights",
)
def taps(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Their number sizes `fc`, their order that of its columns."""
    check_tap_order(drafter.parsed)
    return say.passed(f"{len(drafter.parsed.target_layer_ids)} taps")


@check(
    "drafter.selector",
    "groups that divide hidden_size, no more candidates than tokens",
    "correct conv_group_size or selector_top_k, or fetch config.json again",
)
def selector(say: Words, drafter: DrafterSubject) -> CheckResult:
    """DFlash2's convolutions and candidate selector."""
    check_selector(drafter.parsed)
    found = drafter.parsed.selector
    if found is None:
        return say.passed("none: DFlash v1")
    return say.passed(
        f"convolution of {found.conv_kernel_size} in groups of {found.conv_group_size}, top "
        f"{found.selector_top_k}, rank {found.selector_rank}"
    )


@check(
    "drafter.rope",
    "a rope_type that mlx-lm builds, with all its settings",
    "correct rope_parameters (or rope_scaling), or fetch config.json again",
)
def rope(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Built once, as the loader does."""
    found = drafter.config
    make_rope(found)
    return say.passed(f"{found.rope}; {found.head_dim} dimensions a head")


@check(
    "drafter.files",
    "*.safetensors files beside config.json, and every shard of the index",
    "finish the download: the weights belong beside config.json",
)
def files(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Weights are there."""
    return say.passed(f"{len(drafter.files)} weight file{'s' * (len(drafter.files) > 1)}")


@check(
    "drafter.headers",
    "file sizes that fit their headers, offsets in order, known dtypes",
    "fetch the file that is named again",
)
def headers(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Truncated and damaged files."""
    size = sum(header.file_bytes for header in drafter.headers)
    return say.passed(f"{len(drafter.tensors)} tensors, {readable(size)}")


@check(
    "drafter.tensors",
    "every tensor that this config.json asks for, in its shape, and no other",
    "fetch config.json and weights of one and the same release",
)
def tensors(say: Words, drafter: DrafterSubject) -> CheckResult:
    """Missing, left over, misshapen, of another dtype."""
    reach(drafter.resolved)
    return say.passed(f"all {len(drafter.tensors)} tensors accounted for")


@check(
    "drafter.packing",
    "a 'quantization' block that says how the tensors are packed, or neither",
    "take config.json and weights of one conversion",
)
def packing(say: Words, drafter: DrafterSubject) -> CheckResult:
    """What is packed, by the tensors, and what config.json says of it."""
    reach(drafter.resolved)
    stated = drafter.parsed.quantization.whole
    packs = sum(name.endswith(".scales") for name in drafter.tensors)
    if stated is None:
        return say.passed("not packed" if not packs else f"{packs} packed tensors, told by shapes")
    if not packs:
        return say.warned(f"config.json says {stated}, and no tensor is packed")
    return say.passed(f"{stated}; {packs} packed tensors")


DRAFTER_CHECKS: tuple[Check[DrafterSubject], ...] = (
    kind, config, heads, mask, taps, selector, rope, files, headers, tensors, packing, slab,
)  # fmt: skip
