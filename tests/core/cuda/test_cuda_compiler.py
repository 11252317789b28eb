"""Compiled kernels are kept whole, found again, and never taken for another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_suite.core.cuda.runtime import compiler
from dflash_suite.core.errors import DeviceError


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were really compiled, by a compiler that returns them."""
    texts: list[str] = []

    def compile_text(source: str, target: str) -> bytes:
        texts.append(source)
        return f"{target}:{source}".encode()

    monkeypatch.setattr(compiler, "compile_text", compile_text)
    monkeypatch.setattr(compiler, "architecture", lambda: "sm_90")
    return texts


def test_a_text_is_compiled_once_and_another_text_or_gpu_anew(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert compiler.compiled("k", "text", tmp_path) == b"sm_90:text"
    assert built == ["text"]
    assert compiler.compiled("k", "other", tmp_path) == b"sm_90:other"
    monkeypatch.setattr(compiler, "architecture", lambda: "sm_80")
    assert compiler.compiled("k", "text", tmp_path) == b"sm_80:text"
    assert built == ["text", "other", "text"]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_broken_file_is_compiled_anew(
    built: list[str], tmp_path: Path, damage: bytes | None
) -> None:
    compiler.compiled("k", "text", tmp_path)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"x" if damage is None else damage)
    assert compiler.compiled("k", "text", tmp_path) == b"sm_90:text"
    assert built == ["text", "text"] and file.read_bytes() == data


def test_a_folder_that_takes_no_file_is_done_without(built: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot be kept in .*file.cuda"):
        assert compiler.compiled("k", "text", tmp_path / "file" / "cuda") == b"sm_90:text"
    assert built == ["text"]


def test_without_nvrtc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "open_library", lambda: None)
    with pytest.raises(DeviceError, match="nvidia-cuda-nvrtc.*--kernels stock"):
        compiler.compile_text("text", "sm_90")


@pytest.mark.parametrize(("name", "able"), [("sm_90", True), ("sm_75", False), ("apple", False)])
def test_older_gpus_are_left_to_mlx(
    name: str, able: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "architecture", lambda: name)
    monkeypatch.setattr(compiler, "open_library", object)
    monkeypatch.setattr(compiler, "include_folder", lambda: tmp_path)
    assert compiler.can_compile() is able
