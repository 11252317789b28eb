"""Every layout of a drafter file loads, drafts what its weights say, and never changes the ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.dflash.load import load_drafter
from dflash_suite.drafters.dflash.packed import PackedEmbedding, PackedLinear
from dflash_suite.drafters.pair import load_pair
from tests.kit.families import save_family
from tests.kit.tiny import (
    HIDDEN,
    PieceDetokenizer,
    as_ids,
    assert_varied,
    prompt,
    stock_greedy,
    with_eos,
)
from tests.kit.tiny_drafter import (
    BLOCK,
    make_drafter,
    observe_taps,
    random_ends,
    random_tensors,
    raw_drafter,
    save_drafter,
    tap_rows,
)

AFFINE = {"group_size": 32, "bits": 4, "mode": "affine"}
RECIPES: dict[str, dict[str, Any]] = {
    "4bit": AFFINE,
    "8bit": {"group_size": 64, "bits": 8},
    "mixed": AFFINE
    | {f"layers.{i}.self_attn.q_proj": {"group_size": 64, "bits": 8} for i in range(2)},
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
}
BOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
RANK = 64
"""A codebook's rank that every group size divides."""


def raw_packable(kind: DrafterKind) -> dict[str, Any]:
    return raw_drafter(kind, selector_rank=RANK) if kind == "dflash2" else raw_drafter(kind)


def pack(
    tensors: dict[str, mx.array], recipe: dict[str, Any], books: bool = True
) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """(a file as MLX's converters write it, the same weights unpacked again)."""
    default = {key: value for key, value in recipe.items() if not isinstance(value, dict)}
    packed: dict[str, mx.array] = {}
    unpacked: dict[str, mx.array] = {}
    for name, array in tensors.items():
        path = name.removesuffix(".weight")
        is_matrix = name.endswith(".weight") and array.ndim == 2
        if not is_matrix and not (books and name in BOOKS):
            packed[name] = unpacked[name] = array
            continue
        how = recipe.get(path, default)
        mode = how.get("mode", "affine")
        parts = mx.quantize(array, how["group_size"], how["bits"], mode=mode)
        for part, value in zip(("weight", "scales", "biases"), parts, strict=False):
            packed[f"{path}.{part}"] = value
        biases = parts[2] if len(parts) == 3 else None
        unpacked[name] = mx.dequantize(
            parts[0], parts[1], biases, how["group_size"], how["bits"], mode=mode
        ).astype(mx.float32)
    return packed, unpacked


def save(directory: Path, raw: dict[str, Any], tensors: dict[str, mx.array]) -> DFlashDrafter:
    save_drafter(directory, raw, tensors)
    return load_drafter(read_drafter_config(directory), random_ends(), mx.float32)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_packed_copy_drafts_what_its_unpacked_weights_draft(
    tmp_path: Path, kind: DrafterKind, recipe: str
) -> None:
    raw = raw_packable(kind)
    packed, unpacked = pack(random_tensors(raw), RECIPES[recipe])
    own = save(tmp_path / "packed", raw | {"quantization": RECIPES[recipe]}, packed)
    plain = save(tmp_path / "plain", raw, unpacked)
    modules = dict(own.model.named_modules())
    assert isinstance(modules["fc"], PackedLinear)
    q_proj: Any = modules["layers.0.self_attn.q_proj"]
    assert q_proj.bits == (8 if recipe in ("8bit", "mixed") else 4)
    for drafter in (own, plain):
        observe_taps(drafter, tap_rows(9))
    anchor = mx.array([5])
    hidden = [drafter.block_hidden(anchor, BLOCK - 1) for drafter in (own, plain)]
    assert mx.allclose(hidden[0], hidden[1], atol=1e-3, rtol=1e-3)
    assert as_ids(own.draft(anchor, BLOCK - 1)) == as_ids(plain.draft(anchor, BLOCK - 1))
    if kind == "dflash2":
        books = [getattr(own.model.candidate_selector, path.split(".")[1]) for path in BOOKS]
        for path, book in zip(BOOKS, books, strict=True):
            assert isinstance(book, PackedEmbedding)
            rows = mx.array([0, 7, 511])
            assert mx.allclose(book(rows), unpacked[path][rows], atol=1e-2)


@pytest.mark.parametrize("name", ["bare", ".weight", "model. and .weight"])
def test_codebooks_under_each_name(tmp_path: Path, name: str) -> None:
    """Value-identical, packed projections beside them or not."""
    raw = raw_packable("dflash2")
    tensors = random_tensors(raw)
    for recipe in (None, AFFINE):
        written = dict(tensors) if recipe is None else pack(tensors, recipe, books=False)[0]
        for book in BOOKS:
            prefix = "model." if name.startswith("model.") else ""
            suffix = ".weight" if name != "bare" else ""
            written[f"{prefix}{book}{suffix}"] = written.pop(book)
        drafter = save(tmp_path / str(recipe is None), raw, written)
        for book in BOOKS:
            held = getattr(drafter.model.candidate_selector, book.split(".")[1])
            assert mx.array_equal(held, tensors[book])


def test_a_packing_that_config_json_does_not_announce_is_told_by_the_shapes(
    tmp_path: Path,
) -> None:
    raw = raw_packable("dflash2")
    packed, _ = pack(random_tensors(raw), RECIPES["mixed"])
    drafter = save(tmp_path, raw, packed)
    modules: dict[str, Any] = dict(drafter.model.named_modules())
    assert (modules["layers.1.self_attn.q_proj"].bits, modules["fc"].bits) == (8, 4)


def test_packed_weights_are_not_unpacked_in_memory(tmp_path: Path) -> None:
    raw = raw_packable("dflash2")
    packed, _ = pack(random_tensors(raw), AFFINE)
    drafter = save(tmp_path, raw, packed)
    weights: Any = drafter.model.fc
    assert weights.weight.dtype == mx.uint32 and weights.weight.shape == (HIDDEN, 2 * HIDDEN // 8)


def test_gpt_oss_has_biases_and_yarn(tmp_path: Path) -> None:
    """Both must reach the arithmetic: without either, the drafter's rows are others."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64}
    variants: list[dict[str, Any]] = [
        {"attention_bias": True, "rope_scaling": yarn},
        {"attention_bias": True},
        {"attention_bias": False, "rope_scaling": yarn},
    ]
    rows = []
    for index, changes in enumerate(variants):
        raw = raw_drafter("dflash", rope_parameters=None, rope_theta=150000, **changes)
        full = random_tensors(raw_drafter("dflash", attention_bias=True))
        tensors = {k: v for k, v in full.items() if changes["attention_bias"] or "bias" not in k}
        drafter = save(tmp_path / str(index), raw, tensors)
        observe_taps(drafter, tap_rows(40))
        rows.append(drafter.block_hidden(mx.array([5]), BLOCK - 1))
    assert mx.abs(rows[0] - rows[1]).max().item() > 1e-3  # type: ignore[operator]
    assert mx.abs(rows[0] - rows[2]).max().item() > 1e-3  # type: ignore[operator]


def test_gemmas_cap_is_applied_once_and_its_embedding_is_scaled(tmp_path: Path) -> None:
    """The target caps its logits itself; the drafter caps those of the bare head, by its config."""
    save_family(tmp_path / "target", "gemma4")
    raw = raw_drafter("dflash") | {"final_logit_softcapping": 30.0}
    save_drafter(tmp_path / "drafter", raw)
    pair = load_pair(
        LoadOptions(
            model=str(tmp_path / "target"), drafter=str(tmp_path / "drafter"), speculation="dflash"
        )
    )
    target, drafter = pair.target, pair.drafter
    assert isinstance(drafter, DFlashDrafter)
    hidden = 9 * mx.random.normal((1, 4, HIDDEN), key=mx.random.key(2))
    bare = hidden @ target.backbone.text.lm_head.weight.T
    assert mx.abs(bare).max().item() > 30  # type: ignore[operator]
    capped = mx.tanh(bare / 30.0) * 30.0
    assert mx.allclose(drafter.block_logits(hidden), capped, atol=1e-4)
    assert mx.allclose(target.logits_from_hidden(hidden), capped, atol=1e-4)
    assert mx.allclose(target.head_logits(hidden), bare, atol=1e-4)
    ids = mx.array([[5, 9]])
    assert mx.allclose(
        target.embed_token_ids(ids), 8.0 * target.backbone.body.embed_tokens(ids), atol=1e-5
    )


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
PAIRS: dict[str, tuple[str, DrafterKind, dict[str, Any], bool]] = {
    "llama, v1": ("llama", "dflash", {}, False),
    "qwen3_moe, v1 packed": ("qwen3_moe", "dflash", {}, True),
    "gpt_oss, biases and yarn": (
        "gpt_oss",
        "dflash",
        {
            "attention_bias": True,
            "rope_parameters": None,
            "rope_theta": 1e4,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
        },
        False,
    ),
    "gemma4, v1 sliding": ("gemma4", "dflash", SLIDING, False),
    "gemma4_text, v1": ("gemma4_text", "dflash", {"num_target_layers": 6}, False),
    "qwen3_next, v2": ("qwen3_next", "dflash2", {}, False),
    "qwen3_5_moe, v2 packed": ("qwen3_5_moe", "dflash2", {}, True),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_directories_decode_the_targets_own_ids(tmp_path: Path, name: str) -> None:
    family, kind, changes, packed = PAIRS[name]
    save_family(tmp_path / "target", family)
    raw = raw_packable(kind)
    for key, value in changes.items():
        raw[key] = value
    tensors = random_tensors(raw)
    if packed:
        raw["quantization"] = AFFINE
        tensors, _ = pack(tensors, AFFINE)
    save_drafter(tmp_path / "drafter", raw, tensors, "dflash_draft_model.safetensors")
    pair = load_pair(
        LoadOptions(
            model=str(tmp_path / "target"), drafter=str(tmp_path / "drafter"), speculation="dflash"
        )
    )
    assert pair.route.route == kind and pair.drafter is not None
    ids = prompt(20)
    options = GenerateOptions(max_tokens=40, block_size=BLOCK, gate=False)
    target = with_eos(pair.target, ())
    run = Generation(target, ids, PieceDetokenizer(), drafter=pair.drafter, options=options)
    list(run)
    stock = stock_greedy(pair.target.backbone.model, ids, 60)
    assert_varied(stock)
    assert run.emitter.token_ids == stock[:40]
    assert run.stats.rounds > 10 and run.stats.accepted < run.stats.drafted


def test_a_bad_drafter_is_refused_before_the_target_is_loaded(tmp_path: Path) -> None:
    """The target's weights are not opened; here they could not be."""
    save_family(tmp_path / "target", "qwen3")
    (tmp_path / "target" / "model.safetensors").write_bytes(b"no weights at all")
    raw = raw_drafter("dflash")
    tensors = random_tensors(raw)
    del tensors["fc.weight"]
    save_drafter(tmp_path / "drafter", raw, tensors)
    with pytest.raises(Exception, match=r"1 missing: fc\.weight"):
        load_pair(
            LoadOptions(
                model=str(tmp_path / "target"),
                drafter=str(tmp_path / "drafter"),
                speculation="dflash",
            )
        )


def test_a_tap_on_the_last_layer_is_legal(tmp_path: Path) -> None:
    """Its output before the final norm; one more is out of range, and the message says why."""
    save_family(tmp_path / "target", "qwen3")
    save_drafter(tmp_path / "drafter", raw_drafter("dflash", target_layer_ids=[1, 3]))
    pair = load_pair(
        LoadOptions(
            model=str(tmp_path / "target"), drafter=str(tmp_path / "drafter"), speculation="dflash"
        )
    )
    ids = mx.array([prompt(7)])
    cache = pair.target.make_cache()
    result = pair.target.forward_with_taps(ids, cache, (1, 3))
    assert result.taps is not None
    last = result.taps[:, :, HIDDEN:]
    assert mx.array_equal(pair.target.backbone.body.norm(last), result.hidden)
    save_drafter(tmp_path / "above", raw_drafter("dflash", target_layer_ids=[1, 4]))
    with pytest.raises(Exception, match="count from 0; an export that counts from 1"):
        load_pair(
            LoadOptions(
                model=str(tmp_path / "target"),
                drafter=str(tmp_path / "above"),
                speculation="dflash",
            )
        )


def test_a_padded_vocabulary_is_a_mismatch_and_no_id_map(tmp_path: Path) -> None:
    """500 rows against the target's 512."""
    save_family(tmp_path / "target", "qwen3")
    raw = raw_drafter("dflash", mask_token_id=499) | {"vocab_size": 500}
    save_drafter(tmp_path / "drafter", raw)
    with pytest.raises(Exception, match="drafter vocab 500 != target 512"):
        load_pair(
            LoadOptions(
                model=str(tmp_path / "target"),
                drafter=str(tmp_path / "drafter"),
                speculation="dflash",
            )
        )
    assert json.loads((tmp_path / "drafter" / "config.json").read_text())["vocab_size"] == 500
    assert make_drafter(tmp_path / "other").config.vocab_size == 512
