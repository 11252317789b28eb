"""What goes into a pass and what comes out beside its hidden rows, a launch each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import mlx.core as mx

from ..runtime.assemble import Body, primitives
from ..runtime.launch import TYPES, Kernel, SmallCall, grid_words, one_block
from ..runtime.steps import Given, Step, run_step

LINE_BYTES = 16
JOIN = """
  const void* from[] = {PARTS};
  const int row = block / COUNT, part = block % COUNT;
  const uint4* x = (const uint4*)from[part] + size_t(row) * K;
  uint4* y = (uint4*)out + (size_t(row) * COUNT + part) * K;
  for (int i = threadIdx.x; i < K; i += dflash::kWarps * 32) y[i] = x[i];
"""
FEED = """
  for (int i = threadIdx.x; i <= M; i += dflash::kWarps * 32) {
    const int id = i == 0 ? anchor : int(ids[i - 1]);
    out[i] = i == 0 ? id : id < 0 ? (IS_SIGNED ? 0 : last) : id < last ? id : last;
  }
"""


@cache
def _join(count: int) -> Body:
    return Body(JOIN.replace("PARTS", ", ".join(f"x_{index}" for index in range(count))), ())


def join_rows(parts: Sequence[mx.array]) -> mx.array:
    """parts (1, T, D) side by side: (1, T, len(parts) * D)."""
    _, rows, width = parts[0].shape
    lines, odd = divmod(width * parts[0].itemsize, LINE_BYTES)
    if odd or parts[0].dtype not in TYPES or len(parts) == 1:
        return mx.concatenate(list(parts), axis=-1)
    inputs: dict[str, Given] = {f"x_{index}": part for index, part in enumerate(parts)}
    return run_step(
        Step(
            "join",
            _join(len(parts)),
            rows * len(parts),
            inputs,
            {"out": ((1, rows, width * len(parts)), parts[0].dtype)},
            {"COUNT": len(parts)},
            {"K": lines},
        )
    )[0]


@cache
def _feeder(count: int, dtype: mx.Dtype) -> SmallCall:
    kernel = Kernel("feed", ("ids",), ("out",), FEED, primitives())
    template = [("IS_SIGNED", int(dtype == mx.int32))]
    return one_block(kernel, (dtype, mx.int32), ("anchor", "M", "last"), (1 + count,), template)


def block_ids(anchor: int, ids: mx.array, vocab: int) -> mx.array:
    """int32 (1 + k,): the anchor and drafts (k,), those outside the vocabulary as the nearest
    inside."""
    count = ids.shape[0]
    return _feeder(count, ids.dtype)([ids], [anchor, count, vocab - 1])


@cache
def _writer(count: int) -> SmallCall:
    names = [f"n_{index}" for index in range(count)]
    body = "".join(f"out[{index}] = {name};" for index, name in enumerate(names))
    body = f"if (threadIdx.x == 0) {{ {body} }}"
    kernel = Kernel(f"numbers_{count}", ("words",), ("out",), body, primitives())
    return one_block(kernel, (mx.uint32, mx.int32), names, (count,))


def numbers(values: Sequence[int]) -> mx.array:
    """int32 (n,) that the device writes itself. What the host writes lies in managed memory, and
    the first kernel that reads it may wait 100 microseconds for its page."""
    return _writer(len(values))([grid_words()], values)
