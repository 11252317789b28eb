"""What the driver is asked for, over a double of its library: no GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dflash_suite.core.cuda.runtime import driver
from dflash_suite.core.errors import DeviceError


class Driver:
    """Hands out memory of this process; fails at the call named `broken`."""

    def __init__(self, current: int | None = None, broken: str = "") -> None:
        self.current, self.broken = current, broken
        self.calls: list[str] = []
        self.memory = ctypes.create_string_buffer(b"\7" * 64)

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> int:
            self.calls.append(name)
            if name == "cuCtxGetCurrent":
                given[0]._obj.value = self.current
            if name in ("cuMemHostAlloc", "cuMemHostGetDevicePointer_v2"):
                given[0]._obj.value = ctypes.addressof(self.memory)
            if name == "cuDeviceGetAttribute":
                given[0]._obj.value = 132
            return 2 if name == self.broken else 0

        return call


def use(double: Driver, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ctypes, "CDLL", lambda name: double)


@pytest.mark.parametrize("current", [None, 1234])
def test_the_context_that_mlx_works_in_is_kept(
    current: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = Driver(current)
    use(double, monkeypatch)
    words, address = driver.shared_words(16)
    assert list(words) == [0] * 16 and address == ctypes.addressof(double.memory)
    words[3] = -5
    assert double.memory.raw[12:16] == (-5).to_bytes(4, "little", signed=True)
    assert ("cuCtxSetCurrent" in double.calls) == (current is None)


@pytest.mark.parametrize("broken", ["cuInit", "cuMemHostAlloc", "cuMemHostGetDevicePointer_v2"])
def test_a_driver_that_fails_is_named(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Driver(1, broken), monkeypatch)
    with pytest.raises(DeviceError, match="CUDA driver failed with code 2"):
        driver.shared_words(16)


def test_a_driver_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match="CUDA driver libcuda.so.1 cannot be opened"):
        driver.shared_words(16)


def test_multiprocessors_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Driver()
    use(double, monkeypatch)
    driver.multiprocessors.cache_clear()
    assert driver.multiprocessors() == driver.multiprocessors() == 132
    assert double.calls.count("cuDeviceGetAttribute") == 1
    driver.multiprocessors.cache_clear()
