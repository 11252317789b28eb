"""Finding and loading an MTP head: places, layouts, norms, packs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.errors import (
    DrafterMismatch,
    ModelNotFound,
    RouteUnavailable,
    TensorError,
    UnsupportedModel,
)
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.mtp.find import absence, find_head, is_head_folder, open_folder
from dflash_suite.drafters.mtp.load import load_head
from dflash_suite.drafters.pair import load_pair
from tests.kit.decoding import generate
from tests.kit.families import save_family
from tests.kit.naive_drafter import as_float64
from tests.kit.naive_mtp import NaiveHead
from tests.kit.snapshots import assert_as_fed_alone, bits
from tests.kit.tiny import HIDDEN, VOCAB, as_ids, prompt, stock_greedy
from tests.kit.tiny_mtp import (
    EXPERT_WIDTH,
    MOE,
    found,
    head_tensors,
    prefixed,
    quantized,
    save_target,
    tiny_head,
    tiny_target,
)


def parameters(drafter: MtpDrafter) -> dict[str, Any]:
    flat: Any = tree_flatten(drafter.model.parameters())
    return {name: bits(array) for name, array in flat}


def edit_config(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    raw = json.loads(file.read_text())
    for key, value in changes.items():
        place = raw if key in ("mlx_lm_extra_tensors", "vocab_size") else raw["text_config"]
        place[key] = value
    file.write_text(json.dumps(raw))


@pytest.mark.parametrize("layout", ["numbered", "fused", "fused-bmm", "switch"])
@pytest.mark.parametrize("hf", [True, False])
def test_layouts_of_experts_and_norms_load_as_one(tmp_path: Path, layout: Any, hf: bool) -> None:
    tensors = head_tensors("numbered")
    _, reference = tiny_head(tmp_path / "reference", tensors, **MOE)
    _, drafter = tiny_head(tmp_path / "other", head_tensors(layout, hf=hf), **MOE)
    own, other = parameters(reference), parameters(drafter)
    assert own.keys() == other.keys() and len(own) == 20
    norms = {name for name in own if "norm" in name}
    assert len(norms) == 7
    for name in own.keys() - norms:
        assert own[name] == other[name], name
    flat: Any = tree_flatten(drafter.model.parameters())
    for name, array in flat:
        if name in norms:  # 1 + w is rounded where it is made
            assert np.allclose(as_float64(array), 1 + as_float64(tensors[name]), atol=1e-6), name


def test_experts_are_routed_as_numbered(tmp_path: Path) -> None:
    """The stacked block against one expert after the other, in float64."""
    tensors = head_tensors("numbered")
    _, drafter = tiny_head(tmp_path, head_tensors("fused-bmm"), **MOE)
    ends = mx.zeros((VOCAB, HIDDEN))
    naive = NaiveHead(tensors, ends, ends)
    x = mx.random.normal((1, 9, HIDDEN), key=mx.random.key(2))
    own = as_float64(drafter.model.layers[0].mlp(x)[0])
    expected = np.array([naive._mlp(row) for row in as_float64(x[0])])
    assert np.allclose(own, expected, atol=1e-4) and np.abs(expected).max() > 0.1


PLACES = [
    ("model-mtp-shard.safetensors", "mtp."),
    ("model-mtp-shard.safetensors", "language_model.mtp."),
    ("mtp.safetensors", "mtp."),
    ("mtp.safetensors", ""),
    ("mtp/weights.safetensors", "mtp."),
    ("mtp/weights.safetensors", ""),
    ("model-mtp-head.safetensors", "mtp."),
    ("model_extra_tensors.safetensors", "mtp."),
    ("extra/head.bin.safetensors", "mtp."),
]


@pytest.mark.parametrize(("file", "prefix"), PLACES)
def test_every_place_is_found(tmp_path: Path, file: str, prefix: str) -> None:
    save_target(tmp_path, None)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(tmp_path / file), prefixed(head_tensors(), prefix))
    if file.startswith("extra/"):
        edit_config(tmp_path, mlx_lm_extra_tensors={"mtp_file": file})
    source = found(read_target_config(tmp_path))
    assert len(source.tensors) == 15 and "fc.weight" in source.tensors
    target = tiny_target(tmp_path)
    _, reference = tiny_head(tmp_path / "reference")
    assert parameters(load_head(source, target, mx.float32)) == parameters(reference)


def test_the_declared_file_wins_over_shards_and_side_files(tmp_path: Path) -> None:
    save_target(tmp_path, prefixed(head_tensors(seed=1)))
    for file, seed in (("mtp.safetensors", 2), ("head.st", 3)):
        mx.save_safetensors(str(tmp_path / "x.safetensors"), prefixed(head_tensors(seed=seed)))
        (tmp_path / "x.safetensors").rename(tmp_path / file)
    config = read_target_config(tmp_path)
    assert found(config).tensors["fc.weight"].info.file.name == "model-mtp-shard.safetensors"
    edit_config(tmp_path, mlx_lm_extra_tensors={"mtp_file": "head.st"})
    config = read_target_config(tmp_path)
    assert found(config).tensors["fc.weight"].info.file.name == "head.st"
    edit_config(tmp_path, mlx_lm_extra_tensors={"mtp_file": "gone.safetensors"})
    with pytest.raises(ModelNotFound, match=r"gone\.safetensors"):
        find_head(read_target_config(tmp_path))


def test_a_folder_of_its_own(tmp_path: Path) -> None:
    """As published for MLX: no prefix, norms as they are, its own text_config."""
    save_target(tmp_path / "target", None)
    config = read_target_config(tmp_path / "target")
    folder = tmp_path / "head"
    folder.mkdir()
    raw = {"model_type": "qwen3_5_mtp", "block_size": 3, "text_config": config.raw["text_config"]}
    (folder / "config.json").write_text(json.dumps(raw))
    mx.save_safetensors(str(folder / "model.safetensors"), head_tensors(hf=False))
    assert is_head_folder(folder) and not is_head_folder(tmp_path / "target")
    target = tiny_target(tmp_path / "target")
    drafter = load_head(open_folder(folder, config), target, mx.float32)
    expected = {name: bits(array) for name, array in head_tensors(hf=False).items()}
    assert parameters(drafter) == expected
    raw["text_config"] = {**config.raw["text_config"], "hidden_size": 32}
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(DrafterMismatch, match="hidden size 32 != target 64"):
        open_folder(folder, config)


def test_a_target_with_a_head_is_no_head_folder(tmp_path: Path) -> None:
    assert not is_head_folder(save_target(tmp_path, prefixed(head_tensors())))


def test_no_head_says_why(tmp_path: Path) -> None:
    save_target(tmp_path, None)
    config = read_target_config(tmp_path)
    assert find_head(config) is None
    assert "has no MTP head" in absence(config)
    for key in ("mtp_num_hidden_layers", "num_nextn_predict_layers"):
        edit_config(tmp_path, **{"mtp_num_hidden_layers": 0, key: 1})
        assert f"promises an MTP head ('{key}')" in absence(read_target_config(tmp_path))
    mx.save_safetensors(
        str(tmp_path / "model-x.safetensors"), {"model.layers.4.eh_proj.weight": mx.zeros((2, 2))}
    )
    assert find_head(config) is None
    assert "beyond its last" in absence(config)


def test_a_head_that_conversion_dropped_is_missed_by_name(tmp_path: Path) -> None:
    """Mlx-lm's own convert leaves the promise in config.json and drops the tensors."""
    from mlx_lm import convert

    save_target(tmp_path / "hf", prefixed(head_tensors()), mtp_num_hidden_layers=1)
    assert find_head(read_target_config(tmp_path / "hf")) is not None
    convert(str(tmp_path / "hf"), str(tmp_path / "mlx"))
    with pytest.raises(RouteUnavailable, match="conversion drops them"):
        load_pair(LoadOptions(model=str(tmp_path / "mlx"), speculation="mtp"))


def test_the_config_is_not_believed(tmp_path: Path) -> None:
    """Qwen3-Next ships a head and does not say so."""
    save_target(tmp_path, prefixed(head_tensors()))
    edit_config(tmp_path, mtp_num_hidden_layers=0)
    assert find_head(read_target_config(tmp_path)) is not None


@pytest.mark.parametrize(
    ("pack", "columns"),
    [((8, 32, "affine"), 16), ((4, 32, "affine"), 8), ((3, 64, "affine"), 6),
     ((4, 32, "mxfp4"), 8), ((8, 32, "mxfp8"), 16), ((4, 16, "nvfp4"), 8)],
)  # fmt: skip
def test_packs_are_run_at_their_own_width(
    tmp_path: Path, pack: tuple[int, int, str], columns: int
) -> None:
    """The head's width is read from its shapes, whatever the target's is."""
    bits_, group, mode = pack
    tensors = head_tensors(hf=False)
    packed = quantized(tensors, bits_, group, mode)
    assert packed["layers.0.self_attn.q_proj.weight"].shape[-1] == columns
    target, drafter = tiny_head(tmp_path / "packed", packed)
    linear = drafter.model.layers[0].self_attn.q_proj
    assert isinstance(linear, nn.QuantizedLinear)
    assert (linear.bits, linear.group_size, linear.mode) == pack
    plain = {
        name: mx.dequantize(
            array, packed[name.replace(".weight", ".scales")],
            packed.get(name.replace(".weight", ".biases")), group, bits_, mode=mode,
            dtype=mx.float32,
        ) if array.dtype == mx.uint32 else array
        for name, array in packed.items() if name.endswith(".weight")
    }  # fmt: skip
    _, reference = tiny_head(tmp_path / "plain", plain)
    assert drafts(target, drafter) == drafts(target, reference)


def test_a_packed_target_with_a_plain_and_a_packed_head(tmp_path: Path) -> None:
    """Trunk 4-bit, head at 8-bit and at full width; and experts packed."""
    for name, tensors in {
        "plain": head_tensors(),
        "packed": quantized(head_tensors(hf=False)),
    }.items():
        save_target(tmp_path / name, prefixed(tensors), precision="4bit")
        target = tiny_target(tmp_path / name)
        drafter = load_head(found(target.config), target, mx.float32)
        assert len(set(drafts(target, drafter))) > 1
    numbered = quantized(head_tensors("numbered", hf=False), bits=4, group_size=32)
    _, drafter = tiny_head(tmp_path / "experts", numbered, **MOE)
    switch = drafter.model.layers[0].mlp.switch_mlp
    assert switch.gate_proj.bits == 4 and switch.gate_proj.num_experts == 4
    assert not hasattr(switch.down_proj, "bits")  # 24 columns: left as they are


def drafts(target: Any, drafter: MtpDrafter) -> list[int]:
    ids = prompt(10)
    result = target.forward_with_taps(mx.array([ids]), target.make_cache())
    drafter.reset(0)
    drafter.observe(TargetRows(0, mx.array(ids), None, result.hidden))
    return as_ids(drafter.draft(mx.array([3]), 6))


def broken(tensors: dict[str, mx.array], **changes: Any) -> dict[str, mx.array]:
    """Tensors with some replaced; None takes one out."""
    merged: dict[str, Any] = {**tensors, **changes}
    return {name: array for name, array in merged.items() if array is not None}


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"norm.weight": None}, TensorError, r"1 missing: norm\.weight \[64\]"),
    ({"fc_embedding.weight": mx.zeros((2, 2))}, TensorError, r"nothing uses: fc_embedding"),
    ({"fc.weight": mx.zeros((64, 64))}, TensorError, r"expected \[64, 128\], found \[64, 64\]"),
    ({"layers.1.input_layernorm.weight": mx.zeros(64)}, UnsupportedModel, "2 layers"),
    ({"embed_tokens.weight": mx.zeros((512, 64))}, UnsupportedModel, "its own embed_tokens"),
    ({"norm.weight": mx.zeros((64,), mx.int64)}, TensorError, "dtype I64"),
    ({"fc.scales": mx.zeros((64, 5))}, TensorError, "no MLX packing of 128 columns"),
    ({"layers.0.mlp.gate.weight": mx.zeros((4, 64))}, TensorError, "config.json has none"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        tiny_head(tmp_path, broken(head_tensors(), **changes))
    assert str(tmp_path) in str(caught.value)


def test_doubled_names_are_refused(tmp_path: Path) -> None:
    save_target(tmp_path, prefixed(head_tensors()))
    mx.save_safetensors(
        str(tmp_path / "model-second.safetensors"), prefixed(head_tensors(), "language_model.mtp.")
    )
    with pytest.raises(TensorError, match=r"is in both .*model-mtp-shard.*model-second"):
        find_head(read_target_config(tmp_path))


def test_experts_need_float32_on_the_cpu(tmp_path: Path) -> None:
    save_target(tmp_path, prefixed(head_tensors("fused")), **MOE)
    target = tiny_target(tmp_path, **MOE)
    with pytest.raises(UnsupportedModel, match="--dtype float32"):
        load_head(found(target.config), target, mx.bfloat16)


def test_nothing_is_read_before_the_names_fit(tmp_path: Path) -> None:
    """A head whose data is cut off, and whose names do not fit, fails by its names."""
    save_target(tmp_path, None)
    tensors = broken(head_tensors(), **{"norm.weight": None})
    file = tmp_path / "mtp.safetensors"
    mx.save_safetensors(str(file), prefixed(tensors))
    with pytest.raises(TensorError, match="missing"):
        load_head(found(read_target_config(tmp_path)), tiny_target(tmp_path), mx.float32)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TensorError, match="truncated"):
        find_head(read_target_config(tmp_path))


FAMILIES = [
    ("qwen3_5", "dense", True, "mtp.safetensors"),
    ("qwen3_5", "dense", False, "model-mtp.safetensors"),
    ("qwen3_5_moe", "fused", True, "model-mtp.safetensors"),
    ("qwen3_5_moe", "switch", False, "mtp.safetensors"),
    ("qwen3_next", "numbered", True, "mtp.safetensors"),
    ("qwen3_next", "switch", False, "mtp/weights.safetensors"),
]


@pytest.mark.parametrize(("family", "layout", "hf", "file"), FAMILIES)
def test_every_family_decodes_with_its_head(
    tmp_path: Path, family: str, layout: Any, hf: bool, file: str
) -> None:
    """From the directory to the ids, in HF and in converted layouts, dense and with experts."""
    changes: dict[str, Any] = {} if layout == "dense" else {"moe_intermediate_size": EXPERT_WIDTH}
    save_family(tmp_path, family, **changes)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(tmp_path / file), prefixed(head_tensors(layout, hf=hf)))
    pair = load_pair(LoadOptions(model=str(tmp_path), speculation="mtp", exact=False))
    ids = prompt(9)
    run = generate(pair, ids, GenerateOptions(max_tokens=24, gate=False))
    for _ in run:
        pass
    plain = stock_greedy(pair.target.backbone.model, ids, 24)
    assert run.emitter.token_ids == plain and len(set(plain)) > 10
    assert run.stats.rounds > 5 and run.stats.rounds_by_route == {"mtp": run.stats.rounds}
    assert_as_fed_alone(run.cache, pair.target.backbone.model, [*ids, *plain[:-1]], len(ids))
