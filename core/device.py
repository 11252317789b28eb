"""The few places where the host waits for, starts or reads the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx


def on_cpu() -> bool:
    """True where MLX computes on the CPU."""
    return bool(mx.default_device() == mx.cpu)


def on_cuda() -> bool:
    """True where MLX computes on an NVIDIA GPU."""
    return bool(mx.default_device() == mx.gpu and mx.cuda.is_available())


def dtype_text(dtype: mx.Dtype) -> str:
    """`bfloat16`, as options and probes name it."""
    return str(dtype).removeprefix("mlx.core.")


def memory_bytes() -> int:
    """What the device may use, as it says itself; else all of the machine's memory."""
    info: dict[str, Any] = mx.device_info()
    keys = ("max_recommended_working_set_size", "memory_size", "total_memory")
    stated = next((int(info[key]) for key in keys if info.get(key)), 0)
    return stated or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def start_eval(arrays: Sequence[mx.array]) -> None:
    """Queue arrays on the device and go on."""
    queue: Any = mx.async_eval
    queue(list(arrays))


def start_on_gpu(arrays: Sequence[mx.array]) -> None:
    """start_eval where there is a GPU that would wait otherwise; the CPU has nothing to gain."""
    if not on_cpu():
        start_eval(arrays)


def start_reading(arrays: Sequence[mx.array]) -> Callable[[], list[list[int]]]:
    """Queue vectors of ids where there is a GPU; the function waits for them."""
    start_on_gpu(arrays)

    def fetch() -> list[list[int]]:
        mx.eval(list(arrays))
        return [read_ids(array) for array in arrays]

    return fetch


def read_ids(ids: mx.array) -> list[int]:
    """A vector of ids as Python ints; waits for the device."""
    return cast(list[int], ids.tolist())
