"""One CUDA kernel as a call on MLX arrays.

A kernel's text is completed by its template arguments and the types of its arrays, compiled once
(`compiler.py`), and its shapes are handed over as whole numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx

from .compiler import compiled
from .driver import multiprocessors

THREADS = 256
"""Threads of a block, as `primitives.cu` counts on."""
TYPES = {
    mx.bfloat16: "__nv_bfloat16",
    mx.float32: "float",
    mx.int32: "int",
    mx.uint32: "unsigned",
}
PREAMBLE = """
#include <cuda_bf16.h>
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""
RESIDENTS = 2
"""Blocks of a launch of several steps that a multiprocessor has at a time."""
SHAPE = re.compile(r"\b(\w+)_shape\[(\d)\]")

Template = Sequence[tuple[str, Any]]
Scalars = Mapping[str, int | float]
SmallCall = Callable[[Sequence[mx.array], Sequence[int]], mx.array]
"""Inputs and whole numbers, in the order of the kernel -> its lazy output."""


@dataclass(frozen=True)
class Kernel:
    """CUDA text with a hole for types and constants. `body` names arrays, template arguments and
    scalars; `x_shape[i]` in it becomes a number at the call.

    Inputs are made row-contiguous where they are not. residents: blocks that must fit on one
    multiprocessor; 0 where that does not matter. threads: of a block; room: bytes of shared memory
    that a launch asks for, beside what the text declares.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    header: str
    residents: int = 0
    threads: int = THREADS
    room: int = 0
    _made: dict[Any, tuple[str, bytes]] = field(default_factory=dict, repr=False, compare=False)

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        blocks: int,
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        template: Template = (),
        scalars: Scalars | None = None,
    ) -> list[mx.array]:
        """Lazy outputs of `blocks` blocks."""
        given = dict(scalars or {})
        shapes = dict(zip(self.inputs, (array.shape for array in inputs), strict=True))
        for array, axis in _shapes_named(self.body):
            given[f"{array}_dim{axis}"] = shapes[array][axis]
        dtypes = (*(array.dtype for array in inputs), *output_dtypes)
        run: Callable[..., list[mx.array]] = mx.fast.precompiled_cuda_kernel
        return run(
            **self.variant(template, dtypes, given),
            inputs=list(inputs),
            output_shapes=list(output_shapes),
            output_dtypes=list(output_dtypes),
            scalars=[_as_single(value) for value in given.values()],
            grid=(blocks * self.threads, 1, 1),
            threadgroup=(self.threads, 1, 1),
            shared_memory=self.room,
            ensure_row_contiguous=True,
        )

    def variant(
        self, template: Template, dtypes: Sequence[mx.Dtype], given: Scalars
    ) -> dict[str, Any]:
        """What MLX is handed for the code of these types and kinds of numbers, compiled once."""
        key = (tuple(template), tuple(dtypes), tuple((n, type(v)) for n, v in given.items()))
        if key not in self._made:
            self._made[key] = self._compile(template, dtypes, given)
        name, cubin = self._made[key]
        return {"name": name, "compiled_source": cubin}

    @property
    def bounds(self) -> str:
        """Without them the compiler counts on 1024 threads and spills what does not fit in 64
        registers."""
        return f"__launch_bounds__({self.threads}{f', {self.residents}' if self.residents else ''})"

    def text(self, symbol: str, template: Template, dtypes: Sequence[Any], given: Scalars) -> str:
        """The whole source of one variant."""
        arrays = [*self.inputs, *self.outputs]
        constants = [
            f"constexpr int {name} = {int(value)};"
            if isinstance(value, int)
            else f"using {name} = {TYPES[value]};"
            for name, value in template
        ]
        parameters = [
            f"{'const ' if index < len(self.inputs) else ''}{TYPES[dtype]}* {name}"
            for index, (name, dtype) in enumerate(zip(arrays, dtypes, strict=True))
        ]
        parameters += [
            f"{'int' if isinstance(value, int) else 'float'} {name}"
            for name, value in given.items()
        ]
        body = SHAPE.sub(r"\1_dim\2", self.body)
        return (
            f"{PREAMBLE}{self.header}\n"
            f'extern "C" __global__ void {self.bounds} {symbol}(\n  '
            + ",\n  ".join(parameters)
            + ") {\n"
            + "\n".join(constants)
            + f"\n{body}\n}}\n"
        )

    def _compile(
        self, template: Template, dtypes: Sequence[Any], given: Scalars
    ) -> tuple[str, bytes]:
        words = [str(v).rsplit(".", 1)[-1] for _, v in template]
        # MLX keeps loaded kernels by name: one for each set of types.
        words.append("".join(TYPES[dtype].strip("_")[0] for dtype in dtypes))
        symbol = "_".join(["dflash", self.name, *words])
        return symbol, compiled(symbol, self.text(symbol, template, dtypes, given))


def one_block(
    kernel: Kernel,
    dtypes: Sequence[mx.Dtype],
    numbers: Sequence[str],
    output_shape: tuple[int, ...],
    template: Template = (),
) -> SmallCall:
    """A call of one block with one output, all but its inputs and whole numbers decided: for small
    kernels of every pass, where `Kernel.__call__` would take the host as long as the launch."""
    decided = {
        **kernel.variant(template, dtypes, dict.fromkeys(numbers, 0)),
        "output_shapes": [output_shape],
        "output_dtypes": [dtypes[-1]],
        "grid": (THREADS, 1, 1),
        "threadgroup": (THREADS, 1, 1),
        "ensure_row_contiguous": True,
    }

    def call(inputs: Sequence[mx.array], values: Sequence[int]) -> mx.array:
        run: Callable[..., list[mx.array]] = mx.fast.precompiled_cuda_kernel
        return run(inputs=list(inputs), scalars=list(values), **decided)[0]

    return call


@cache
def resident_blocks() -> int:
    """Blocks that a launch of several steps has: all of them run at once."""
    return RESIDENTS * multiprocessors()


@cache
def grid_words() -> mx.array:
    """The two words of `Grid` in primitives.cu, which every launch leaves as it found them."""
    words = mx.zeros((64,), dtype=mx.uint32)
    mx.eval(words)
    return words


@cache
def _shapes_named(body: str) -> tuple[tuple[str, int], ...]:
    """(array, axis) of every `x_shape[i]` in it, once."""
    return tuple((name, int(axis)) for name, axis in dict.fromkeys(SHAPE.findall(body)))


def _as_single(value: int | float) -> int | float:
    """MLX takes a float only where float32 holds it exactly."""
    if isinstance(value, int):
        return value
    single: float = struct.unpack("f", struct.pack("f", value))[0]
    return single
