"""The suite's CUDA kernels on a CPU: their text compiled by g++ over cuda_on_cpu.h.

Slow, and no stand-in for a GPU: it holds what the text computes, and that rows are independent.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from filelock import FileLock

from dflash_suite.core.cuda.ops import ends, fourbit, mailbox
from dflash_suite.core.cuda.runtime import assemble, launch, steps
from dflash_suite.core.cuda.runtime.steps import source_file

HEADER = Path(__file__).resolve().parent / "cuda_on_cpu.h"
COMPILER = shutil.which("g++") if sys.platform == "linux" else None
"""Elsewhere g++ is another compiler, and coroutines have other names."""
FLAGS = ["-O1", "-std=c++17", "-w", "-ffp-contract=off", "-fPIC", "-U_FORTIFY_SOURCE"]
"""Fortified, glibc takes a jump to another stack for a broken one."""
BLOCKS = 2
"""Of a launch whose blocks wait for each other; fewer than the pieces of a step."""
MULTIPROCESSORS = 3
"""So few that a block has several items of a projection."""
NUMPY: dict[mx.Dtype, Any] = {
    mx.bfloat16: np.uint16,
    mx.float32: np.float32,
    mx.int32: np.int32,
    mx.uint32: np.uint32,
}


class CudaOnCpu:
    """Stands for NVRTC and for mx.fast.precompiled_cuda_kernel while a test runs."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self._folder = folder
        self._texts: dict[str, str] = {}
        self._run: dict[str, Callable[..., int]] = {}
        self.calls: list[str] = []
        self.shared_memory = 232448
        monkeypatch.setattr(launch, "compiled", self._keep)
        monkeypatch.setattr(steps, "resident_blocks", lambda: BLOCKS)
        monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", self._call)
        monkeypatch.setattr(fourbit, "multiprocessors", lambda: MULTIPROCESSORS)
        monkeypatch.setattr(fourbit, "shared_memory", lambda: self.shared_memory)
        monkeypatch.setattr(mailbox, "shared_words", shared_words)

    def _keep(self, symbol: str, text: str) -> bytes:
        self._texts[symbol] = text
        return symbol.encode()

    def _call(
        self,
        *,
        name: str,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        scalars: Sequence[int | float],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        **rest: Any,
    ) -> list[mx.array]:
        self.calls.append(name)
        if name not in self._run:
            self._run[name] = self._build(name, self._texts[name])
        given = [_as_numpy(array) for array in inputs]
        made = [
            np.frombuffer(_shared(_size(shape, dtype)), NUMPY[dtype]).reshape(shape)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        gate = np.frombuffer(_shared(8, b"\0"), np.uint32)
        numbers = [
            ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)
            for value in scalars
        ]
        addresses = [array.ctypes.data for array in (*given, *made)]
        addresses += [ctypes.addressof(number) for number in numbers]
        failed = self._run[name](
            grid[0] // threadgroup[0],
            (ctypes.c_void_p * len(addresses))(*addresses),
            ctypes.c_void_p(gate.ctypes.data),
        )
        assert failed == 0, f"{name} did not end"
        arrays = [mx.array(array) for array in made]
        return [
            array.view(mx.bfloat16) if dtype == mx.bfloat16 else array
            for array, dtype in zip(arrays, output_dtypes, strict=True)
        ]

    def _build(self, symbol: str, text: str) -> Callable[..., int]:
        primitives = source_file("primitives").read_text(encoding="utf-8")
        assert primitives in text and COMPILER is not None
        include = f'#include "{self._header(COMPILER)}"\n'
        text = text.replace(primitives, "").replace(launch.PREAMBLE, include)
        bounds = r"__launch_bounds__\(([0-9]+)[0-9, ]*\)"
        pattern = rf'extern "C" __global__ void {bounds} {symbol}\((.*?)\) \{{'
        match = re.search(pattern, text, re.DOTALL)
        assert match is not None
        arguments = []
        for index, parameter in enumerate(match[2].split(",")):
            kind = parameter.rsplit(maxsplit=1)[0]
            held = f"a[{index}]"
            arguments.append(f"({kind}){held}" if "*" in kind else f"*({kind}*){held}")
        text = f"{text[: match.start()]}static void kernel({match[2]}) {{{text[match.end() :]}"
        form = "launch_together" if "Grid{" in match.string[match.end() :] else "launch"
        text += (
            'extern "C" int run(int blocks, void** a, unsigned* gate) {\n'
            f"  return {form}(blocks, {match[1]}, "
            f"[&] {{ kernel({', '.join(arguments)}); }}, gate);\n}}\n"
        )
        run: Callable[..., int] = ctypes.CDLL(str(self._library(COMPILER, text))).run
        return run

    def _library(self, compiler: str, text: str) -> Path:
        """The text compiled: once for all test files and processes of a session."""
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        library = self._folder / f"{name}.so"
        if not library.exists():
            made = self._folder / f"{name}-{os.getpid()}.so"
            source = made.with_suffix(".cpp")
            source.write_text(text, encoding="utf-8")
            subprocess.run([compiler, *FLAGS, "-shared", "-o", str(made), str(source)], check=True)
            made.replace(library)
        return library

    def _header(self, compiler: str) -> Path:
        """The header, compiled once for all kernels: most of what each of them takes."""
        header = self._folder / HEADER.name
        with FileLock(f"{header}.lock"):
            if not header.exists():
                copied = self._folder / f"new-{HEADER.name}"
                shutil.copy(HEADER, copied)
                made = f"{header}.gch"
                subprocess.run(
                    [compiler, *FLAGS, "-x", "c++-header", "-o", made, str(copied)], check=True
                )
                copied.replace(header)
        return header


def emulate(folder: Path) -> Iterator[CudaOnCpu]:
    """For a test file; folder: where kernels are compiled, and found if they were before."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        forget_kernels()
        yield CudaOnCpu(folder, patch)
        forget_kernels()


def forget_kernels() -> None:
    kept = (ends._feeder, ends._writer, mailbox._sender, mailbox.mailbox)
    for made in (assemble.assemble, *kept):
        made.cache_clear()


def shared_words(count: int) -> tuple[Any, int]:
    """As the driver's: one process here is host and device."""
    words = (ctypes.c_int * count)()
    return words, ctypes.addressof(words)


def _shared(size: int, byte: bytes = b"\x7f") -> mmap.mmap:
    """Memory that processes share; what a kernel leaves unwritten of it is enormous."""
    memory = mmap.mmap(-1, size)
    memory.write(byte * size)
    return memory


def _size(shape: Sequence[int], dtype: mx.Dtype) -> int:
    return int(np.prod(shape)) * int(dtype.size)


def _as_numpy(array: mx.array) -> Any:
    array = mx.contiguous(array)
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
