"""The fused decoder's bookkeeping, held on the CPU with plain operations in place of the kernels:
bitwise the plain backbone's logits, taps, caches and rollbacks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.cuda.backbone import FusedBackbone, fits_layer, fused_backbone
from dflash_suite.core.cuda.decoder import FusedTape
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from dflash_suite.core.cuda.segments import Segment, split_segments
from dflash_suite.core.errors import ExactUnavailable
from dflash_suite.core.exact.plan import exact_base, find_plan
from dflash_suite.core.options import LoadOptions
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.pair import Pair, load_pair
from tests.kit.tiny import make_target, prompt

pytestmark = pytest.mark.quick

TAPS = (0, 3, 5)


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stands for mx.compile, whose CPU build needs a compiler: calls the function as it is."""
    return function


def pair(precision: Any = "float32", layers: int = 6) -> tuple[Target, Target]:
    """One model behind both backbones; layers 3 attends, 4 and 5 end the decoder."""
    plain = make_target("hybrid", precision, num_hidden_layers=layers)
    fused = FusedBackbone(plain.backbone.model, OpKernels(), traced_once)
    return plain, Target(fused, plain.config)


def same_caches(one: list[Any], other: list[Any]) -> None:
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.offset == b.offset
        if hasattr(a, "cache"):
            held = list(zip(a.cache, b.cache, strict=True))
        else:
            held = list(zip(a.keys_and_values(), b.keys_and_values(), strict=True))
        for left, right in held:
            assert mx.array_equal(left, right), f"layer {index}"


def test_segments_are_cut_at_attention() -> None:
    linear = [True, True, False, True, False, False]
    assert split_segments(linear) == [
        Segment(None, (0, 1), 2),
        Segment(2, (3,), 4),
        Segment(4, (), 5),
        Segment(5, (), None),
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_passes_are_bitwise_the_plain_backbones(precision: Any) -> None:
    plain, fused = pair(precision)
    ids = prompt(30)
    caches = plain.make_cache(), fused.make_cache()
    start = 0
    for rows in (20, 5, 1, 3, 1):  # 20 rows are too many for the fused decoder
        block = mx.array([ids[start : start + rows]])
        start += rows
        results = [
            t.verify_rows(block, c, TAPS) for t, c in zip((plain, fused), caches, strict=True)
        ]
        assert mx.array_equal(results[0].hidden, results[1].hidden)
        assert results[0].taps is not None and results[1].taps is not None
        assert mx.array_equal(results[0].taps, results[1].taps)
        logits = [
            t.logits_from_hidden(r.hidden) for t, r in zip((plain, fused), results, strict=True)
        ]
        assert mx.array_equal(logits[0], logits[1])
        same_caches(*caches)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_a_rollback_is_bitwise_what_feeding_the_kept_rows_gives(keep: int) -> None:
    _, fused = pair()
    ids = prompt(20)
    cache, expected = fused.make_cache(), fused.make_cache()
    for entry in (cache, expected):
        fused.forward_with_taps(mx.array([ids[:7]]), entry)
    result = fused.verify_rows(mx.array([ids[7:12]]), cache, ())
    assert result.tape is not None
    assert {type(layer) for layer in result.tape.layers} == {FusedTape, type(None)}
    fused.rollback(cache, result.tape, keep, 5 - keep)
    fused.forward_with_taps(mx.array([ids[7 : 7 + keep]]), expected)
    same_caches(cache, expected)


def test_a_first_block_without_a_prompt_can_be_rolled_back() -> None:
    _, fused = pair()
    ids = prompt(8)
    cache, expected = fused.make_cache(), fused.make_cache()
    result = fused.verify_rows(mx.array([ids[:4]]), cache, ())
    fused.rollback(cache, result.tape, 2, 2)
    fused.forward_with_taps(mx.array([ids[:2]]), expected)
    same_caches(cache, expected)


def test_a_wide_block_leaves_the_plain_tape_and_rolls_back() -> None:
    plain, fused = pair()
    ids = prompt(30)
    caches = plain.make_cache(), fused.make_cache()
    for target, cache in zip((plain, fused), caches, strict=True):
        result = target.verify_rows(mx.array([ids]), cache, ())
        target.rollback(cache, result.tape, 11, 19)
    same_caches(*caches)


def test_how_wide_rows_are_independent_follows_from_what_the_kernels_take(
    bundled_pairs: dict[str, Pair],
) -> None:
    """The bundled target's a and b have 4 outputs each: they count as much as the wide ones."""
    model = load_pair(
        LoadOptions(speculation="none", dtype="bfloat16", exact=False)
    ).target.backbone.model
    target = Target(
        FusedBackbone(model, CudaKernels(), traced_once), bundled_pairs["dflash"].target.config
    )
    assert target.backbone.independent_rows == 16 and exact_base(target) is target
    plain = Target(
        FusedBackbone(model, OpKernels(), traced_once), target.config
    )  # attention is MLX's own
    assert plain.backbone.independent_rows == 1
    gdn = model.layers[0].linear_attn
    gdn.in_proj_b.weight = gdn.in_proj_b.weight.astype(mx.float32)
    assert target.backbone.independent_rows == 1
    base = exact_base(target)
    assert base.kernels == "stock" and base.backbone.independent_rows is None
    assert not fits_layer(CudaKernels(), SimpleNamespace(mlp=SimpleNamespace(experts=8)), 4)


def test_a_fused_target_that_is_not_independent_has_no_plan_of_its_own() -> None:
    _, fused = pair()
    with pytest.raises(ExactUnavailable):
        find_plan(fused)
    assert find_plan(exact_base(fused), contexts=(12,), tokens=6).width >= 8


def test_rows_of_another_dtype_than_the_norms_are_not_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dflash_suite.core.cuda.backbone.cuda_in_use", lambda: True)
    target = make_target("hybrid", "bfloat16")
    assert fused_backbone(target.backbone) is not None
    embedding = target.backbone.body.embed_tokens
    embedding.weight = embedding.weight.astype(mx.float32)
    assert fused_backbone(target.backbone) is None
