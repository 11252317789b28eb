"""CUDA text to machine code through NVRTC, kept on disk: later processes compile nothing.

MLX's own `mx.fast.cuda_kernel` compiles in every process; its `precompiled_cuda_kernel` takes what
was compiled here. NVRTC is the one that MLX's CUDA wheel brings.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...atomic_files import write_whole
from ...errors import DeviceError
from ...settings import cache_directory

LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
HEADER = "cuda_bf16.h"
INCLUDE_FOLDERS = ("/usr/local/cuda/include", "/usr/include")
LOWEST_ARCHITECTURE = 80
"""The kernels multiply bfloat16 matrices by an instruction that Ampere brought."""
DIGEST_BYTES = 32


def architecture() -> str:
    """The GPU's own, such as sm_90."""
    info: dict[str, Any] = mx.device_info()
    return str(info["architecture"])


def can_compile() -> bool:
    """True where the GPU is new enough and NVRTC and its headers are found."""
    name = architecture().removeprefix("sm_")
    new_enough = name.isdigit() and int(name) >= LOWEST_ARCHITECTURE
    return new_enough and open_library() is not None and include_folder() is not None


@cache
def open_library() -> Any:
    """NVRTC, or None. MLX has loaded it already, so that its name is enough."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def include_folder() -> Path | None:
    """Where HEADER is: in NVIDIA's wheels, which MLX's depends on, or in a toolkit."""
    folders = (*_wheel_folders(), *map(Path, INCLUDE_FOLDERS))
    return next((folder for folder in folders if (folder / HEADER).is_file()), None)


def _wheel_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        yield from sorted((folder / "include" for folder in Path(place).iterdir()), reverse=True)


def compiled(name: str, source: str, folder: Path | None = None) -> bytes:
    """The cubin of `source`, whose one kernel is `name`: from `folder`, else compiled and kept.

    folder: by default `cuda` in the suite's cache directory. A file there begins with the digest
    of the rest, so that a broken one is compiled anew; one that cannot be written is a
    RuntimeWarning.
    Raises DeviceError with the compiler's log where the text does not compile.
    """
    target = architecture()
    key = hashlib.sha256("\0".join((target, _version(), source)).encode()).hexdigest()
    file = (folder or cache_directory() / "cuda") / f"{name[:80]}-{target}-{key[:32]}.cubin"
    held = _read(file)
    if held is not None:
        return held
    cubin = compile_text(source, target)
    _write(file, cubin)
    return cubin


def compile_text(source: str, target: str) -> bytes:
    """One call of NVRTC."""
    library, include = open_library(), include_folder()
    if library is None or include is None:
        raise DeviceError(
            "--kernels fused needs NVRTC and the header cuda_bf16.h, which come with the wheels "
            "nvidia-cuda-nvrtc and nvidia-cuda-runtime; install them, or use --kernels stock"
        )
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    options = [f"--gpu-architecture={target}", "--std=c++17", f"--include-path={include}"]
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if library.nvrtcCompileProgram(program, len(options), given) != 0:
        log = _take(library, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        raise DeviceError(
            f"a CUDA kernel of the suite does not compile for {target}; use --kernels stock and "
            f"report this:\n{log[:2000]}"
        )
    cubin = _take(library, "CUBIN", program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin


def _take(library: Any, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw[: size.value]


def _check(result: int) -> None:
    if result != 0:
        raise DeviceError(f"NVRTC failed with code {result}; use --kernels stock")


@cache
def _version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library = open_library()
    if library is not None:
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _read(file: Path) -> bytes | None:
    try:
        data = file.read_bytes()
    except OSError:
        return None
    digest, cubin = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None


def _write(file: Path, cubin: bytes) -> None:
    try:
        write_whole(file, hashlib.sha256(cubin).digest() + cubin)
    except OSError as exc:
        _warn(file, exc)


def _warn(file: Path, exc: OSError) -> None:
    """Once a folder: without it a start that compiles every time looks like a slow one."""
    warnings.warn(
        f"compiled CUDA kernels cannot be kept in {file.parent} ({exc.strerror or exc}): every "
        "process compiles them anew",
        RuntimeWarning,
        stacklevel=2,
    )
