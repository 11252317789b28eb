"""The probe of the fused path: passes rounding, refuses a wrong kernel; kernel text is whole."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import pytest
from tiny import make_target

from dflash_suite.core.cuda import sources
from dflash_suite.core.cuda.backbone import FusedBackbone, fused_backbone
from dflash_suite.core.cuda.check import compare, probe_fused
from dflash_suite.core.cuda.kernels import cuda_in_use
from dflash_suite.core.cuda.ops import OpKernels
from dflash_suite.core.errors import ProbeFailed
from dflash_suite.core.target import Target


class Planted(OpKernels):
    """A gated product that is wrong in one of its two ways, or a little off."""

    def __init__(self, swapped: bool) -> None:
        self._swapped = swapped

    def gated(self, gate: Any, up: Any, x: mx.array) -> mx.array:
        if self._swapped:
            return super().gated(up, gate, x)
        return super().gated(gate, up, x) * (1 + 1e-5)


def fused(plain: Target, kernels: OpKernels) -> Target:
    backbone = FusedBackbone(plain.backbone.model, kernels, lambda function: function)
    return Target(backbone, plain.config)


def test_rounding_passes_and_a_wrong_kernel_does_not() -> None:
    plain = make_target("hybrid")
    probe_fused(plain, fused(plain, Planted(swapped=False)))
    with pytest.raises(ProbeFailed, match="fused CUDA kernels differ"):
        probe_fused(plain, fused(plain, Planted(swapped=True)))


def test_compare_measures_the_worst_row_and_nan_is_no_match() -> None:
    row = mx.array([[3.0, 4.0, 0.0], [3.0, 4.0, 0.0]])
    moved = mx.array([[3.0, 4.0, 0.0], [3.0, 4.0, 1.0]])
    error, regret = compare(row, moved)
    assert error == pytest.approx(0.2) and regret == 0
    _, regret = compare(row, mx.array([[3.0, 4.0, 0.0], [5.0, 4.0, 0.0]]))
    assert regret > 0.5
    error, _ = compare(row, mx.array([[3.0, 4.0, float("nan")]] * 2))
    assert not error <= 1e9


def test_only_a_plain_hybrid_on_cuda_is_fused() -> None:
    plain = make_target("hybrid")
    assert (fused_backbone(plain.backbone) is not None) == cuda_in_use()
    assert fused_backbone(make_target("dense").backbone) is None


KERNELS = [
    lambda: sources.linear_kernel.__wrapped__(False, False),
    lambda: sources.linear_kernel.__wrapped__(True, True),
    lambda: sources.several_kernel.__wrapped__(True, 4),
    lambda: sources.gated_kernel.__wrapped__(True),
    lambda: sources.gdn_kernel.__wrapped__(),
    lambda: sources.norm_kernel.__wrapped__(),
    lambda: sources.prepare_kernel.__wrapped__(),
    lambda: sources.attention_kernel.__wrapped__(),
    lambda: sources.combine_kernel.__wrapped__(True),
]


@pytest.mark.parametrize("build", KERNELS)
def test_kernel_text_is_whole_and_uses_its_inputs(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def record(name: str, inputs: list[str], outputs: list[str], body: str, **rest: Any) -> object:
        made.update(name=name, names=[*inputs, *outputs], body=body, **rest)
        return object()

    monkeypatch.setattr(mx.fast, "cuda_kernel", record)
    build()
    text = made["body"] + made["header"]
    assert not re.search(r"\b(TILE|FILL|PICKS|PICK|RESIDUAL|GATE)\b", made["body"])
    assert not re.search(r"_I\b", made["body"])
    for name in made["names"]:
        assert re.search(rf"\b{name}\b", made["body"]), f"{name} is given and not used"
    for opening, closing in ("{}", "()", "[]"):
        assert text.count(opening) == text.count(closing)


def test_a_kernels_name_follows_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda name, *rest, **more: names.append(name))
    sources.make("x", ["a"], ["b"], "b[0] = a[0];")
    sources.make("x", ["a"], ["b"], "b[0] = a[1];")
    assert names[0] != names[1]
