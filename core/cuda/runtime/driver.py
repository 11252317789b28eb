"""What NVIDIA's driver is asked for beside MLX: how large the GPU is, and memory that it shares."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ...errors import DeviceError

NAME = "libcuda.so.1"
MULTIPROCESSORS = 16
"""The driver's number of that attribute."""
SHARED_MEMORY = 97
"""The number of the bytes that a block may ask for."""
PORTABLE_AND_MAPPED = 3


@cache
def multiprocessors() -> int:
    """How many the GPU has, as its driver says."""
    return _attribute(MULTIPROCESSORS)


@cache
def shared_memory() -> int:
    """Bytes of it that a block may have."""
    return _attribute(SHARED_MEMORY)


def shared_words(count: int) -> tuple[Any, int]:
    """(an array of C ints, zero; the address that the GPU has for it): page-locked memory of the
    host that both write and read, held until the process ends."""
    driver, device = _open()
    context, place, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
    if not context.value:  # nothing of MLX's has run in this thread
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))  # MLX's own
        _check(driver.cuCtxSetCurrent(context))
    size = count * ctypes.sizeof(ctypes.c_int)
    _check(driver.cuMemHostAlloc(ctypes.byref(place), ctypes.c_size_t(size), PORTABLE_AND_MAPPED))
    _check(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(address), place, 0))
    if place.value is None:
        raise DeviceError("the CUDA driver gave no page-locked memory, and no error either")
    ctypes.memset(place, 0, size)
    return (ctypes.c_int * count).from_address(place.value), address.value


def _attribute(number: int) -> int:
    driver, device = _open()
    value = ctypes.c_int()
    _check(driver.cuDeviceGetAttribute(ctypes.byref(value), number, device))
    return value.value


def _open() -> tuple[Any, ctypes.c_int]:
    """The driver and its first device, which is MLX's."""
    try:
        driver: Any = ctypes.CDLL(NAME)
    except OSError as exc:
        raise DeviceError(f"the CUDA driver {NAME} cannot be opened: {exc}") from exc
    device = ctypes.c_int()
    _check(driver.cuInit(0))
    _check(driver.cuDeviceGet(ctypes.byref(device), 0))
    return driver, device


def _check(result: int) -> None:
    if result != 0:
        raise DeviceError(f"the CUDA driver failed with code {result}")
