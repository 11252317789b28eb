"""What the doctor says of this machine is true of it, and its ranges are those of the package."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.doctor.checks.check import run_checks
from dflash_suite.doctor.checks.download import DOWNLOAD_CHECKS, Download
from dflash_suite.doctor.checks.machine import (
    BELOW,
    LOWEST,
    MACHINE_CHECKS,
    TESTED,
    place_problem,
    read_machine,
    script_owners,
)
from tests.kit.places import ROOT

pytestmark = pytest.mark.quick


def dotted(parts: tuple[int, ...]) -> str:
    """(0, 32, 2) -> 0.32.2."""
    return ".".join(map(str, parts))


def test_the_ranges_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, lowest in LOWEST.items():
        assert f"{name}>={dotted(lowest)},<{dotted(BELOW[name])}" in project["dependencies"]
        tested = tuple(map(int, TESTED[name].split(".")))
        assert lowest <= tested < BELOW[name]


def test_this_machine() -> None:
    machine = read_machine()
    assert machine.versions == {"mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
    assert (machine.backend == "cpu") == (mx.default_device() == mx.cpu)
    assert machine.memory_bytes > 1_000_000_000 and machine.disk_free_bytes > 0
    results, not_reached = run_checks(MACHINE_CHECKS, machine)
    assert len(results) == len(MACHINE_CHECKS) and not not_reached
    assert all(result.status != "fail" for result in results)


@pytest.mark.skipif(sys.platform != "linux", reason="MLX's CPU wheel for Linux brings the BLAS")
def test_the_reference_blas_is_found_where_the_process_maps_it() -> None:
    """The file that the doctor names is one that libmlx really loaded."""
    found = read_machine().reference_blas
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    mapped = {line.rsplit("/", 1)[-1] for line in maps.splitlines() if "libblas" in line}
    assert (found is not None) == bool(mapped)
    assert found is None or found in mapped


@pytest.mark.parametrize(("free", "status"), [(10**9, "pass"), (10**9 - 1, "warn")])
def test_room_for_a_download(free: int, status: str) -> None:
    """Only hub ids that are not here yet have one (test_doctor_hub.py)."""
    (result,), _ = run_checks(DOWNLOAD_CHECKS, Download(10**9, free, "/cache"))
    assert result.status == status and result.found.startswith("1.00 GB to fetch")


def test_every_owner_of_the_script_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip leaves it when two distributions install a script of one name."""
    before = set(script_owners())
    for name in ("dflash", "dflash-mlx"):
        info = tmp_path / f"{name.replace('-', '_')}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text("[console_scripts]\ndflash = other:main\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(script_owners()) == before | {"dflash", "dflash-mlx"}


def test_a_cache_that_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor passed a path below a file."""
    (tmp_path / "file").write_text("")
    assert place_problem(tmp_path / "a" / "b") is None
    assert "is not a folder" in str(place_problem(tmp_path / "file" / "slabs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    machine = read_machine()
    assert machine.disk_problem is not None and "is not a folder" in machine.disk_problem
