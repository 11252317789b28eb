"""The machine: versions, device, BLAS, memory, disk, and who owns the `dflash` script."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from ...core.checkpoint.listing import list_files
from ...core.errors import ResourceError
from ...core.kernel_folder import ADVICE, folder_problem, folder_risk, kernel_folder
from ...drafters.slab.store import slab_directory
from ..results import CheckResult
from ..units import readable
from .check import Check, Words, check

DISTRIBUTION = "dflash-suite"
LOWEST = {"mlx": (0, 32, 2), "mlx-lm": (0, 32, 2)}
BELOW = {"mlx": (0, 33), "mlx-lm": (0, 33)}
"""The ranges of pyproject.toml, which a test holds equal to these."""
TESTED = {"mlx": "0.32.4", "mlx-lm": "0.32.2"}
LITTLE_DISK_BYTES = 2_000_000_000
"""Room for the slab of a large drafter and some."""


@dataclass(frozen=True)
class Machine:
    """What this computer is. Sizes in bytes; memory is what the device may use."""

    versions: dict[str, str | None]
    device: str
    backend: str
    has_idle_gpu: bool
    reference_blas: str | None
    memory_bytes: int
    disk_free_bytes: int
    disk_path: Path
    script_owners: tuple[str, ...]
    kernel_folder: Path | None = None
    disk_problem: str | None = None


def read_machine() -> Machine:
    """Look at this machine, and at the disk of the user's cache directory."""
    disk_path = slab_directory()
    device, backend, memory = _device()
    return Machine(
        versions={name: _version(name) for name in LOWEST},
        device=device,
        backend=backend,
        has_idle_gpu=backend == "cpu" and Path("/dev/nvidia0").exists(),
        reference_blas=_reference_blas() if backend == "cpu" else None,
        memory_bytes=memory,
        disk_free_bytes=free_bytes(disk_path),
        disk_path=disk_path,
        script_owners=script_owners(),
        kernel_folder=kernel_folder() if backend == "cpu" else None,
        disk_problem=place_problem(disk_path),
    )


def script_owners() -> tuple[str, ...]:
    """Distributions that install a console script named `dflash`."""
    scripts = entry_points(group="console_scripts", name="dflash")
    names = {script.dist.name for script in scripts if script.dist is not None}
    return tuple(sorted(names))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device() -> tuple[str, str, int]:
    """(name, backend, memory in bytes) of MLX's default device."""
    import mlx.core as mx

    from ...core.device import memory_bytes

    info = mx.device_info()
    name = str(info.get("device_name") or info.get("architecture") or "unknown")
    on_cpu = mx.default_device() == mx.cpu
    backend = "cpu" if on_cpu else "metal" if mx.metal.is_available() else "cuda"
    return f"{name} ({platform.system()} {platform.machine()})", backend, memory_bytes()


def _reference_blas() -> str | None:
    """The file name of the plain BLAS that MLX's CPU wheel for Linux brings along."""
    import mlx.core as mx

    packages = Path(mx.__file__).parent.parent
    folders = sorted(path for path in packages.iterdir() if fnmatch(path.name, "mlx*.libs"))
    found = [file.name for folder in folders for file in list_files(folder, "libblas[-.]*")]
    return min(found, default=None)


def place_problem(path: Path) -> str | None:
    """Why nothing can be kept in a folder that may not be there yet; None where it can."""
    for place in (path, *path.parents):
        if os.path.lexists(place):
            if not os.path.isdir(place):
                return f"{place} is not a folder"
            return None if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"
    return None


def free_bytes(path: Path) -> int:
    """Room on the disk where `path` is, or will be."""
    try:
        return shutil.disk_usage(path).free
    except OSError:  # not there yet, or nobody may look
        return 0 if path == path.parent else free_bytes(path.parent)


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())


@check(
    "machine.versions",
    f"mlx and mlx-lm in the tested ranges (tested: {', '.join(map(' '.join, TESTED.items()))})",
    "pip install 'mlx>=0.32.2,<0.33' 'mlx-lm>=0.32.2,<0.33'",
)
def versions(say: Words, machine: Machine) -> CheckResult:
    """mlx 0.32.1 garbles quantized models; other mlx-lm versions may compute a layer in another
    way, which the forward check at load refuses."""
    found = ", ".join(f"{name} {number or 'missing'}" for name, number in machine.versions.items())
    for name, number in machine.versions.items():
        if number is None or not LOWEST[name] <= _parts(number) < BELOW[name]:
            return say.warned(found)
    return say.passed(found)


@check(
    "machine.device",
    "MLX computes on the fastest device that is there",
    "install MLX's CUDA backend: pip install 'dflash-suite[cuda]'",
)
def device(say: Words, machine: Machine) -> CheckResult:
    """MLX's CPU wheel on a machine that has a GPU is an install by mistake."""
    found = f"{machine.backend}: {machine.device}, {readable(machine.memory_bytes)} memory"
    if machine.has_idle_gpu:
        return say.warned(f"{found}; an NVIDIA GPU is there and not used")
    return say.passed(found)


@check(
    "machine.blas",
    "a backend on which eight rows cost about as much as one",
    "for speed use a Mac or an NVIDIA GPU, or --speculation none here",
)
def blas(say: Words, machine: Machine) -> CheckResult:
    """MLX's Linux CPU wheel has the reference BLAS, whose time is linear in rows."""
    if machine.reference_blas is not None:
        return say.warned(
            f"the reference BLAS of MLX's CPU wheel ({machine.reference_blas}): rows cost linear "
            "time, so speculation saves none; the text is the same"
        )
    return say.passed(f"{machine.backend} backend")


@check(
    "machine.script",
    f"one installed distribution has a script named dflash, {DISTRIBUTION}",
    "uninstall the other one, or run: python -m dflash_suite.cli",
)
def script(say: Words, machine: Machine) -> CheckResult:
    """The last one installed wins, and uninstalling one takes the other's script away."""
    owners = machine.script_owners
    if not owners:
        return say.passed("no distribution has one (running from a source tree)")
    found = f"dflash belongs to {', '.join(owners)}"
    return say.passed(found) if owners == (DISTRIBUTION,) else say.warned(found)


@check(
    "machine.disk",
    f"{readable(LITTLE_DISK_BYTES)} free for slabs and downloads",
    "make room there, or point XDG_CACHE_HOME and HF_HOME to another disk",
)
def disk(say: Words, machine: Machine) -> CheckResult:
    """A quantized drafter is kept on disk; so is what the hub delivers."""
    if machine.disk_problem is not None:
        return say.warned(f"slabs cannot be kept at {machine.disk_path}: {machine.disk_problem}")
    found = f"{readable(machine.disk_free_bytes)} free at {machine.disk_path}"
    enough = machine.disk_free_bytes >= LITTLE_DISK_BYTES
    return say.passed(found) if enough else say.warned(found)


@check(
    "machine.kernels",
    "a folder of one's own, in which MLX can compile its CPU kernels",
    ADVICE,
)
def kernels(say: Words, machine: Machine) -> CheckResult:
    """MLX runs the libraries that it finds there."""
    folder = machine.kernel_folder
    if folder is None:
        return say.passed(f"{machine.backend} backend")
    problem, risk = folder_problem(folder), folder_risk(folder)
    if problem is not None:
        return say.failed(ResourceError(problem))
    return say.passed(str(folder)) if risk is None else say.warned(risk)


MACHINE_CHECKS: tuple[Check[Machine], ...] = (versions, device, blas, script, disk, kernels)
