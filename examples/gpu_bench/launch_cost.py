"""What a launch costs the host: by its arrays, outputs, numbers, and the size of its machine code.

python examples/gpu_bench/launch_cost.py
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import mlx.core as mx
from setting import no_gpu

from dflash_suite.core.cuda.runtime.launch import THREADS, Kernel

CHAIN, TURNS = 20, 60
ARRAYS = (1, 4, 8, 16, 32)
OUTPUTS = (2, 4, 8)
NUMBERS = (8, 32, 96)
CODE = (2000, 20000)
LENGTHS = (1, 2, 4, 8, 64)


def main() -> int:
    """A line a case: microseconds a launch until all are queued, and until all are done."""
    if no_gpu():
        return 1
    for arrays in ARRAYS:
        report(f"{arrays} arrays", make(arrays=arrays))
    for outputs in OUTPUTS:
        report(f"{outputs} outputs", make(outputs=outputs))
    for numbers in NUMBERS:
        report(f"{numbers} numbers", make(numbers=numbers))
    for operations in CODE:
        report(f"code of {operations} operations", make(operations=operations))
    for length in LENGTHS:
        report(f"{length} in a row", make(), length)
    return 0


def make(arrays: int = 1, outputs: int = 1, numbers: int = 0, operations: int = 0) -> Any:
    """A function of one array that makes the next, in a launch of one block."""
    inputs = tuple(f"x_{index}" for index in range(arrays))
    made = tuple(f"y_{index}" for index in range(outputs))
    scalars = {f"n_{index}": index for index in range(numbers)}
    terms = [f"{name}[threadIdx.x]" for name in inputs] + [f"float({name})" for name in scalars]
    body = f"float value = {' + '.join(terms)};\n"
    for index in range(operations):
        body += f"value = value * 1.0001f + x_0[(threadIdx.x + {index}) & 3];\n"
    body += "".join(f"{name}[threadIdx.x] = value;\n" for name in made)
    kernel = Kernel(f"cost_{arrays}_{outputs}_{numbers}_{operations}", inputs, made, body, "")
    others = [mx.zeros((THREADS,)) for _ in inputs[1:]]
    mx.eval(others)

    def call(x: mx.array) -> mx.array:
        return kernel(
            inputs=[x, *others],
            blocks=1,
            output_shapes=[(THREADS,)] * outputs,
            output_dtypes=[mx.float32] * outputs,
            scalars=scalars,
        )[0]

    return call


def report(label: str, call: Any, length: int = CHAIN) -> None:
    """Medians over TURNS chains of `length` launches, each of which reads the one before."""
    start = mx.zeros((THREADS,))
    mx.eval(call(start))
    queued, whole = [], []
    for _ in range(TURNS):
        x = start
        for _ in range(length):
            x = call(x)
        mx.synchronize()
        marks = [time.perf_counter()]
        queue: Any = mx.async_eval
        queue(x)
        marks.append(time.perf_counter())
        mx.eval(x)
        marks.append(time.perf_counter())
        queued.append(1e6 * (marks[1] - marks[0]) / length)
        whole.append(1e6 * (marks[2] - marks[0]) / length)
    print(f"{label:28} queued {median(queued):7.2f}  done {median(whole):7.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
