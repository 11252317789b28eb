"""What the operating system refuses ends a command with a line that names it, never a traceback."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.core import settings
from dflash_suite.core.atomic_files import write_whole
from dflash_suite.core.errors import CheckpointError, ResourceError, described, resource_errors
from dflash_suite.drafters.pair import load_pair
from tests.kit.doctor_pairs import save_pair

NOBODY = 65534


def run(*arguments: str) -> Any:
    """One command; whatever it is refused, it ends with an exit code and nothing else."""
    result: Any = CliRunner().invoke(app, list(arguments), input="")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def generate(pair: Path, *more: str) -> Any:
    """Two tokens of a pair."""
    return run(
        "generate", "--raw", "x", "-n", "2", "-q", "--no-stored-probe", "-m", str(pair), *more
    )


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody whom permissions concern: root is somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody may enter: pytest's own are the user's alone, all the way up."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pair that anybody may read. All commands have run once: nothing is imported any more."""
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        (folder / variable).mkdir()
        os.chmod(folder / variable, 0o777)
        monkeypatch.setenv(variable, str(folder / variable))
    made = save_pair(folder / "pair")
    assert generate(made).exit_code == run("doctor", str(made)).exit_code == 0
    assert run("quantize", "--list").exit_code == 0
    yield made
    for path in (made, made / "drafter"):
        os.chmod(path, 0o755)


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "drafter",
     "drafter/config.json", "drafter/model.safetensors", "."],
)  # fmt: skip
def test_what_may_not_be_read(name: str, pair: Path) -> None:
    os.chmod(pair / name, 0)
    with unprivileged():
        if os.access(pair / name, os.R_OK, effective_ids=True):
            pytest.skip("permissions do not hold here")
        made = generate(pair, "-s", "dflash")
        found = run("doctor", str(pair))
        slab = run("quantize", str(pair / "drafter")) if "drafter" in name else None
    for result in (made, *([slab] if slab is not None else [])):
        assert result.exit_code == 1 and "ermission denied" in result.stderr
        assert str((pair / name).resolve()) in result.stderr
    assert found.exit_code == 1 and "ermission denied" in " ".join(found.stdout.split())


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "XDG_CONFIG_HOME"])
@pytest.mark.parametrize("place", ["a file", "nobody's"])
def test_a_users_directory_that_cannot_be_used(
    variable: str, place: str, pair: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache everything runs; below a file there are no settings."""
    stated = folder / "place"
    if place == "a file":
        stated.write_text("")
    else:
        stated.mkdir(mode=0)
    monkeypatch.setenv(variable, str(stated))
    runs = variable == "XDG_CACHE_HOME" or place == "a file"
    with unprivileged():
        results = [generate(pair), run("doctor", str(pair)), run("doctor")]
        listed = [run("quantize", "--list"), run("quantize", "--prune")]
    assert [result.exit_code == 0 for result in results] == [runs] * 3
    assert {result.exit_code for result in listed} == {0 if place == "a file" else 1}
    for result in (*results, *listed):
        assert result.exit_code == 0 or "ermission denied" in result.stderr


def test_no_home_and_no_entry_in_the_list_of_users(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs under a number: there are no settings and no cache."""
    import pwd

    def unknown(number: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert settings.cache_directory().is_relative_to(os.devnull)
    for result in (generate(pair), run("doctor", str(pair)), run("quantize", "--list")):
        assert result.exit_code == 0, result.stderr
    assert "~/m" in (missing := generate(Path("~/m"))).stderr and missing.exit_code == 1
    assert generate(Path("~nobody-of-that-name/m")).exit_code == 1


def test_a_working_directory_that_was_removed(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for result in (generate(pair), run("doctor", str(pair)), run("quantize", "--list")):
        assert result.exit_code == 0, result.stderr
    missing = generate(Path("here"))
    assert missing.exit_code == 1 and "here" in missing.stderr


def test_a_name_that_no_file_system_takes(pair: Path) -> None:
    for name in ("x" * 5000, f"{pair}/" + "x" * 300, "a\x00b", "/dev/null/x"):
        for result in (generate(Path(name)), run("doctor", name), run("quantize", name)):
            assert result.exit_code == 1
    loop = pair / "loop"
    loop.symlink_to(loop)
    for result in (generate(loop), run("doctor", str(loop))):
        assert result.exit_code == 1


def test_too_little_memory(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's MemoryError says nothing at all."""

    def full(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(mx, "load", full)
    result = generate(pair, "-s", "none")
    assert result.exit_code == 1 and "not enough memory" in result.stderr
    with pytest.raises(ResourceError, match="not enough memory"), resource_errors():
        full()


@pytest.mark.parametrize("text", ["", "\n", "  "])
def test_an_exception_that_says_nothing_is_named(text: str, pair: Path) -> None:
    assert described(ValueError(text)) == "ValueError"
    shown = described(ValueError("heads\n  a,\n  b,\n  c."), names=2)
    assert shown == "ValueError: heads a, b and 1 more"


def test_a_model_that_mlx_lm_fails_over_without_a_word(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """num_key_value_heads of null raised an assertion that has no text."""
    from dflash_suite.core.loading import load

    def silent(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(load, "load_model", silent)
    from dflash_suite.core.options import LoadOptions

    with pytest.raises(CheckpointError, match="mlx-lm: AssertionError"):
        load_pair(LoadOptions(model=str(pair), speculation="none", exact=False))


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes every file's data go nowhere from that many further calls of fsync on."""

    def after(calls: int) -> None:
        real, done = os.fsync, [0]

        def full(descriptor: int) -> None:
            done[0] += 1
            if done[0] > calls and stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", full)

    return after


@pytest.mark.parametrize("calls", [0, 2])
def test_a_full_disk_under_out(
    calls: int, pair: Path, tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    """Weights first (a file and its directory), then config.json: nothing is left of either."""
    out = tmp_path / "out"
    small_disk(calls)
    result = run("quantize", str(pair / "drafter"), "--out", str(out))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr and str(out) in result.stderr
    assert "stdout" not in result.stderr
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_written_whole_has_the_mode_of_any_other(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "ours", b"x")
        (tmp_path / "any").write_bytes(b"x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "any")]
    assert modes[0] == modes[1] == 0o666 & ~mask
