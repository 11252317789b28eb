"""MLX's kernels on a CPU are compiled into a folder that must be there, and one's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.core.kernel_folder import folder_problem, folder_risk, kernel_folder

NOBODY = 65534
cpu_only = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="kernels are not the CPU's")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, of these tests alone."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def test_where_mlx_compiles(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_folder() == place / "mlx"
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.delenv("TMP", raising=False)
    monkeypatch.delenv("TEMPDIR", raising=False)
    assert kernel_folder() == Path("/tmp/mlx")


def test_nothing_there_yet_is_fine(place: Path) -> None:
    assert folder_problem(place / "mlx") is None and folder_risk(place / "mlx") is None
    (place / "mlx" / "0.1" / "cpu").mkdir(parents=True, mode=0o755)
    assert folder_problem(place / "mlx") is None and folder_risk(place / "mlx") is None


def test_what_cannot_be_used_is_named(place: Path) -> None:
    assert "is not there" in str(folder_problem(place / "no" / "mlx"))
    (place / "mlx").write_text("")
    assert "is not a folder" in str(folder_problem(place / "mlx"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("inner", ["mlx", "mlx/0.1/cpu"])
def test_a_folder_of_another_user(place: Path, inner: str) -> None:
    (place / "mlx" / "0.1" / "cpu").mkdir(parents=True, mode=0o755)
    os.chown(place / inner, NOBODY, NOBODY)
    assert "whose libraries MLX would run" in str(folder_risk(place / "mlx"))
    os.chown(place / inner, 0, 0)
    os.chmod(place / inner, 0o777)
    assert "can be written by others" in str(folder_risk(place / "mlx"))
    found = CliRunner().invoke(app, ["doctor"])
    assert "can be written by others" in " ".join(found.stdout.split())


@cpu_only
def test_a_folder_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback, after the weights had been read."""
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    done = CliRunner().invoke(app, ["generate", "--raw", "x", "-n", "2"])
    assert done.exit_code == 1 and "/nowhere/at/all" in done.stderr
    assert "set TMPDIR to a folder of your own" in " ".join(done.stderr.split())
    found = CliRunner().invoke(app, ["doctor"])
    assert found.exit_code == 1 and "FAIL kernels" in found.stdout
