"""The check of the fused path: passes rounding, refuses a wrong kernel; kernel text is whole."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.cuda.backbone import FusedBackbone, fused_backbone
from dflash_suite.core.cuda.check import check_fused, compare
from dflash_suite.core.cuda.ops import bodies
from dflash_suite.core.cuda.ops.fused_ops import cuda_in_use
from dflash_suite.core.cuda.ops.reference_ops import OpKernels
from dflash_suite.core.cuda.runtime import launch
from dflash_suite.core.cuda.runtime.assemble import Body, Function, Signature, assemble, repeats
from dflash_suite.core.cuda.runtime.launch import Kernel
from dflash_suite.core.cuda.runtime.steps import GROWING, NO_PACKS, _Call
from dflash_suite.core.errors import ForwardMismatch
from dflash_suite.core.target.target import Target
from tests.kit.tiny import make_target

pytestmark = pytest.mark.quick


class Planted(OpKernels):
    """A gated product that is wrong in one of its two ways, or a little off."""

    def __init__(self, swapped: bool) -> None:
        self._swapped = swapped

    def gated(self, gate: Any, up: Any, x: mx.array, norm: Any = None) -> mx.array:
        if self._swapped:
            return super().gated(up, gate, x, norm)
        return super().gated(gate, up, x, norm) * (1 + 1e-5)


def fused(plain: Target, kernels: OpKernels) -> Target:
    backbone = FusedBackbone(plain.backbone.model, kernels, lambda function: function)
    return Target(backbone, plain.config)


def test_rounding_passes_and_a_wrong_kernel_does_not() -> None:
    plain = make_target("hybrid")
    check_fused(plain, fused(plain, Planted(swapped=False)))
    with pytest.raises(ForwardMismatch, match="fused CUDA kernels differ"):
        check_fused(plain, fused(plain, Planted(swapped=True)))


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


BODIES = [
    bodies.linear(False, False, ""),
    bodies.linear(True, True, "_gate_normed"),
    bodies.several(True, 4, "_normed"),
    bodies.gated(True, "_normed"),
    bodies.recurrence(),
    bodies.gated_norm(),
    bodies.prepare(True),
    bodies.prepare(False),
    bodies.attend(False),
    bodies.attend(True),
    bodies.combine(True),
]


@pytest.mark.parametrize("body", BODIES)
def test_no_hole_of_a_body_is_left(body: Body) -> None:
    holes = r"\b(TILE|FILL|ROWS|PICKS|PICK|RESIDUAL|GATE|[KV]_BLOCK)\b"
    assert not re.search(holes, body.text) and not re.search(r"_I\b", body.text)
    text = body.text + "".join(file.read_text(encoding="utf-8") for file in body.files)
    for opening, closing in ("{}", "()", "[]"):
        assert text.count(opening) == text.count(closing)


def test_steps_of_a_launch_see_what_those_before_them_made() -> None:
    body = Body("y[block] = x[block] + N;", ())
    arguments = (("int", "blocks"), ("const float*", "x"), ("float*", "y"))
    one = Function(body, (("N", 1),), arguments)
    two = replace(one, constants=(("N", 2),))
    chain = [
        Signature(one, ("a_blocks", "a_x", "a_y")),
        Signature(two, ("b_blocks", "a_y", "b_y")),
        Signature(one, ("c_blocks", "b_y", "c_y")),
    ]
    kernel = assemble("abc", tuple(chain), ("a_x", "token", "words"), ("c_y", "token_next"), True)
    assert kernel.residents == 2 and kernel.bounds == "__launch_bounds__(256, 2)"
    wait = "dflash::Grid{(unsigned*)words}.sync();"
    calls = [
        called(0, "", "a_blocks, a_x, a_y"),
        called(1, wait, "b_blocks, a_y, b_y"),
        called(0, wait, "c_blocks, b_y, c_y"),
    ]
    assert kernel.body.startswith("\n".join(calls)), "steps that are alike share a function"
    warm = replace(one, body=replace(body, warm="fetch(x);"))
    chain[2] = replace(chain[2], function=warm)
    other = assemble("abc", tuple(chain), ("a_x", "token", "words"), ("c_y", "token_next"), True)
    assert other.name != kernel.name, "MLX keeps kernels by name"
    assert called(2, f"step_2<true>(given); {wait}", "c_blocks, b_y, c_y") in other.body
    again = assemble("abc", (*chain[:2], *chain[:2]), ("a_x",), ("b_y",), True)
    assert again.body.count("step_0<false>") == again.body.count("step_1<false>") == 1, "a loop"
    assert "turn < 2" in again.body and again.body.count("if (turn == 1) given = ") == 2


def test_numbers_are_handed_over_once_but_those_that_grow() -> None:
    call = _Call(NO_PACKS)
    assert call._number("s0", "K", 256) == call._number("s1", "K", 256) == "s0_K"
    assert call._number("s1", "K", 640) == "s1_K" and call._number("s2", "N", 256) == "s2_N"
    for name in GROWING:
        assert call._number("s0", name, 9) != call._number("s1", name, 9), "equal by chance"


def called(step: int, before: str, given: str) -> str:
    arguments = f"of_{step}::Arguments"
    return f"{{ {arguments} given = {arguments}{{{given}}}; {before} step_{step}<false>(given); }}"


@pytest.mark.parametrize(
    ("kinds", "pieces"),
    [
        ("abcabcabcd", [(3, 3), (1, 1)]),
        ("xabab", [(1, 1), (2, 2)]),
        ("aab", [(1, 2), (1, 1)]),
        ("abcde", [(1, 1)] * 5),
        ("aabaab", [(3, 2)]),
        ("", []),
    ],
)
def test_alike_steps_are_one_piece(kinds: str, pieces: list[tuple[int, int]]) -> None:
    assert repeats([ord(kind) for kind in kinds]) == pieces


def test_a_call_compiles_one_text_for_its_types_and_hands_over_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []

    def compile(symbol: str, text: str) -> bytes:
        assert f"void __launch_bounds__(256) {symbol}(" in text
        texts.append(text)
        return symbol.encode()

    monkeypatch.setattr(launch, "compiled", compile)
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", lambda **call: calls.append(call))
    kernel = Kernel("scale", ("x",), ("y",), "y[0] = In(x_shape[1] * factor + N);", "")
    for rows in (2, 3):
        kernel(
            inputs=[mx.zeros((rows, 7), dtype=mx.bfloat16)],
            blocks=5,
            output_shapes=[(1,)],
            output_dtypes=[mx.float32],
            template=[("In", mx.float32), ("N", 4)],
            scalars={"factor": 0.5},
        )
    assert len(texts) == 1, "another shape is no other text"
    assert "const __nv_bfloat16* x,\n  float* y,\n  float factor,\n  int x_dim1)" in texts[0]
    assert "using In = float;\nconstexpr int N = 4;" in texts[0]
    assert "y[0] = In(x_dim1 * factor + N);" in texts[0]
    assert [call["scalars"] for call in calls] == [[0.5, 7], [0.5, 7]]
    assert calls[0]["grid"] == (5 * 256, 1, 1) and calls[0]["ensure_row_contiguous"]
    kernel(
        inputs=[mx.zeros((2, 7))],
        blocks=5,
        output_shapes=[(1,)],
        output_dtypes=[mx.float32],
        template=[("In", mx.float32), ("N", 4)],
        scalars={"factor": 0.5},
    )
    assert len(texts) == 2 and calls[2]["name"] != calls[0]["name"]
