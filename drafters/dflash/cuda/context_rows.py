"""Committed rows projected into every layer's context, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ....core.cuda.ops.attention import prepare_keys, prepare_keys_step
from ....core.cuda.ops.fused_ops import CudaKernels
from ....core.cuda.ops.projections import (
    Feed,
    feed_normed,
    fit_together,
    fits_linear,
    fits_norm,
    linear_step,
    several_step,
)
from ....core.cuda.runtime.packs import join_outputs
from ....core.cuda.runtime.steps import Given, Packed, run_steps


class ContextRows:
    """Keys and values of tap rows for `layers`, in their order.

    All their key projections are one, and so are the value projections: a layer's own are parts of
    these (`packs`).
    """

    def __init__(self, model: Any, layers: Sequence[int], rope: Any, kernels: CudaKernels) -> None:
        self._model = model
        self._rope = rope
        self._kernels = kernels
        self._attentions = [model.layers[index].self_attn for index in layers]
        self.packs: dict[int, Packed] = {}
        self._joint: list[Any] = []
        modules = [[getattr(a, name) for a in self._attentions] for name in ("k_proj", "v_proj")]
        self._is_joined = fits_linear(model.fc, 1) and fit_together(sum(modules, []), 1)
        self._is_joined &= fits_norm(model.hidden_norm, mx.bfloat16)
        if not self._is_joined:
            return
        for each in modules:
            whole, packs = join_outputs(each)
            self._joint.append(whole)
            self.packs |= packs
        self._norms = mx.concatenate([a.k_norm.weight for a in self._attentions])
        mx.eval(self._norms)

    def __call__(
        self, taps: mx.array, position: mx.array, token: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """taps (1, n, taps * hidden), rows from position[0] on: (keys, values (1, layers * Hk, n,
        D), token)."""
        model, count = self._model, taps.shape[1]
        rows = taps.astype(model.norm.weight.dtype)
        if not self._is_joined:
            return (*self._apart(rows, position), token)
        heads = sum(a.kv_heads for a in self._attentions)
        first = self._attentions[0]
        fc = linear_step("fc", model.fc, Feed("", count, rows.shape[2], {"x": rows}))
        fed = feed_normed("fc.out", model.hidden_norm, count, model.hidden_norm.weight.shape[0])
        both = several_step("in", self._joint, fed, (heads, heads))
        given: dict[str, Given] = {"k": "in.out_0", "v": "in.out_1"}
        given |= {"k_weight": self._norms, "position": position}
        shape = (count, heads, first.head_dim)
        ready = prepare_keys_step(
            "ready", given, shape, first.kv_heads, first.k_norm.eps, self._rope
        )
        wanted = ("ready.k_out", "ready.v_out")
        made, token = run_steps([fc, both, ready], token, wanted, self._kernels.packs)
        return made[wanted[0]], made[wanted[1]], token

    def _apart(self, rows: mx.array, position: mx.array) -> tuple[mx.array, mx.array]:
        """In a launch a step, and a layer's keys after another's."""
        model = self._model
        fused = self._kernels.linear(model.fc, rows)
        modules = [module for one in self._attentions for module in (one.k_proj, one.v_proj)]
        counts = [one.kv_heads for one in self._attentions for _ in range(2)]
        projected = self._kernels.several(modules, fused, counts, model.hidden_norm)
        made = [
            prepare_keys(attention, self._rope, keys, values, position)
            for attention, keys, values in zip(
                self._attentions, projected[::2], projected[1::2], strict=True
            )
        ]
        keys, values = zip(*made, strict=True)
        return mx.concatenate(list(keys), axis=1), mx.concatenate(list(values), axis=1)
