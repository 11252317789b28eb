"""Tiny random DFlash and DFlash2 drafters: config.json, tensors, and loaded ones.

The tensor layout is written down here a second time, from the format and not from the modules, so
that a module with a wrong parameter name or shape cannot agree with itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx

from dflash_suite.core.block import Block
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.options import GenerateOptions, Kernels
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.dflash.drafter import DFlashDrafter, TargetEnds
from dflash_suite.drafters.dflash.load import load_drafter
from tests.kit.tiny import HIDDEN, LAYERS, VOCAB

ABSENT: Final = object()
"""A value that takes its key out of the config."""
MASK = VOCAB - 1
BLOCK = 6
TAPS = (0, 2)
V1_NESTED: dict[str, Any] = {
    "block_size": BLOCK,
    "mask_token_id": MASK,
    "target_layer_ids": list(TAPS),
}
V2_NESTED: dict[str, Any] = {
    **V1_NESTED,
    "conv_group_size": 16,
    "conv_kernel_size": 2,
    "selector_rank": 8,
    "selector_top_k": 4,
}
TOP: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": 16,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 1024,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "vocab_size": VOCAB,
}
SLIDING: dict[str, Any] = {
    "is_causal": False,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 12,
    "use_sliding_window": True,
}
NESTED_KEYS = frozenset(V2_NESTED) | {
    "causal",
    "input_embedding_scale",
    "output_multiplier",
    "final_logit_softcapping",
}


def raw_drafter(kind: DrafterKind = "dflash2", **changes: Any) -> dict[str, Any]:
    """config.json of a tiny drafter; a change goes where the published files have that key."""
    if kind == "dflash2":
        raw: dict[str, Any] = {**TOP, **SLIDING, "architectures": ["DFlash2DraftModel"]}
        nested = dict(V2_NESTED)
    else:
        raw = {**TOP, "architectures": ["DFlashDraftModel"]}
        nested = dict(V1_NESTED)
    for key, value in changes.items():
        place = nested if key in NESTED_KEYS else raw
        if value is ABSENT:
            del place[key]
        else:
            place[key] = value
    raw["dflash_config"] = nested
    return raw


def tensor_shapes(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as a checkpoint of this config.json has them."""
    nested, width = raw["dflash_config"], raw["hidden_size"]
    head, inner = raw["head_dim"], raw["intermediate_size"]
    q_rows, kv_rows = raw["num_attention_heads"] * head, raw["num_key_value_heads"] * head
    layer = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (q_rows, width),
        "self_attn.k_proj.weight": (kv_rows, width),
        "self_attn.v_proj.weight": (kv_rows, width),
        "self_attn.o_proj.weight": (width, q_rows),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, len(nested["target_layer_ids"]) * width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    if raw.get("attention_bias"):
        biases = {"q": q_rows, "k": kv_rows, "v": kv_rows, "o": width}
        layer |= {f"self_attn.{name}_proj.bias": (rows,) for name, rows in biases.items()}
    if "selector_rank" in nested:
        rank, kernel = nested["selector_rank"], nested["conv_kernel_size"]
        coefficients = 2 * kernel * width // nested["conv_group_size"]
        for conv in ("attention_conv", "mlp_conv"):
            layer[f"{conv}.base_kernel"] = (2, kernel, width)
            layer[f"{conv}.kernel_projection.weight"] = (coefficients, width)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, width)
        for side in ("predecessor", "successor"):
            shapes[f"candidate_selector.{side}_codebook"] = (raw["vocab_size"], rank)
    for index in range(raw["num_hidden_layers"]):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def random_tensors(raw: dict[str, Any], seed: int = 0) -> dict[str, mx.array]:
    """Seeded float32 tensors: norms around 1, projections that keep the scale of their input."""
    mx.random.seed(seed)
    tensors: dict[str, mx.array] = {}
    for name, shape in tensor_shapes(raw).items():
        noise = mx.random.normal(shape)
        if name.endswith("norm.weight"):
            tensors[name] = 1 + 0.2 * noise
        elif name.endswith((".weight", "codebook")):
            tensors[name] = noise * (2.0 / shape[-1] ** 0.5)
        else:
            tensors[name] = 0.5 * noise  # biases and base kernels
    mx.eval(tensors)
    return tensors


def save_drafter(
    directory: Path,
    raw: dict[str, Any] | None = None,
    tensors: dict[str, mx.array] | None = None,
    file: str = "model.safetensors",
) -> Path:
    """A checkpoint directory: config.json, and its (random) tensors in one file."""
    raw = raw or raw_drafter()
    write_config(directory, raw)
    mx.save_safetensors(str(directory / file), random_tensors(raw) if tensors is None else tensors)
    return directory


def write_config(directory: Path, raw: dict[str, Any]) -> Path:
    """A directory with config.json and nothing else."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    return directory


@dataclass(frozen=True)
class RandomEnds:
    """A target's two ends without the target: an untied embedding and head (vocab, hidden)."""

    embedding: mx.array
    head: mx.array
    kernels: Kernels = "stock"

    def embed_token_ids(self, token_ids: mx.array) -> mx.array:
        """(1, T) ids -> (1, T, hidden)."""
        return self.embedding[token_ids]

    def head_logits(self, hidden: mx.array) -> mx.array:
        """(1, T, hidden) -> (1, T, vocab)."""
        return hidden @ self.head.T


def random_ends(seed: int = 7, vocab: int = VOCAB, hidden: int = HIDDEN) -> RandomEnds:
    """Seeded ends whose logits differ clearly from id to id."""
    mx.random.seed(seed)
    ends = RandomEnds(mx.random.normal((vocab, hidden)), mx.random.normal((vocab, hidden)))
    mx.eval(ends.embedding, ends.head)
    return ends


def make_drafter(
    directory: Path,
    kind: DrafterKind = "dflash2",
    *,
    ends: TargetEnds | None = None,
    dtype: mx.Dtype = mx.float32,
    seed: int = 0,
    **changes: Any,
) -> DFlashDrafter:
    """A tiny drafter that went to disk and back; without `ends` it gets random ones."""
    raw = raw_drafter(kind, **changes)
    save_drafter(directory, raw, random_tensors(raw, seed))
    return load_drafter(read_drafter_config(directory), ends or random_ends(), dtype)


def tap_rows(count: int, seed: int = 3, taps: int = len(TAPS), hidden: int = HIDDEN) -> mx.array:
    """(1, count, taps * hidden) seeded rows, as a target would have left them."""
    rows = mx.random.normal((1, count, taps * hidden), key=mx.random.key(seed))
    mx.eval(rows)
    return rows


def observe_taps(drafter: DFlashDrafter, taps: mx.array, chunk: int | None = None) -> None:
    """Show the drafter rows from its position on, `chunk` rows at a time."""
    total = int(taps.shape[1])
    step = chunk or max(total, 1)
    for start in range(0, total, step):
        rows = taps[:, start : start + step]
        count = int(rows.shape[1])
        ids = mx.zeros((count,), dtype=mx.int32)
        hidden = mx.zeros((1, count, HIDDEN))
        drafter.observe(TargetRows(drafter.position, ids, rows, hidden))


def largest(array: mx.array) -> float:
    """The largest magnitude of an array (reads from the device)."""
    return cast(float, mx.abs(array).max().item())


class Recorder:
    """A drafter that passes everything on and keeps the drafts of each round.

    first_row: the position of the first row that it was shown.
    """

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self.drafts: list[mx.array] = []
        self.first_row: int | None = None

    @property
    def name(self) -> str:
        return self._drafter.name

    def block(self, options: GenerateOptions) -> Block:
        return self._drafter.block(options)

    @property
    def tap_ids(self) -> tuple[int, ...]:
        return self._drafter.tap_ids

    @property
    def context_rows(self) -> int | None:
        return self._drafter.context_rows

    @property
    def position(self) -> int:
        return self._drafter.position

    def reset(self, position: int) -> None:
        self._drafter.reset(position)

    def observe(self, rows: TargetRows) -> None:
        self.first_row = rows.position if self.first_row is None else self.first_row
        self._drafter.observe(rows)

    def draft(self, anchor: mx.array, count: int) -> mx.array:
        drafts = self._drafter.draft(anchor, count)
        self.drafts.append(drafts)
        return drafts

    def state(self) -> list[mx.array]:
        return self._drafter.state()
