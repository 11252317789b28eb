"""What the cache holds can be listed and bounded: slabs by use and size, stored probes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.cli.options.quantize import parse_size
from dflash_suite.core.errors import OptionError
from dflash_suite.core.probe_store import ProbeKey, StoredProbe, probe_directory, save_probe
from dflash_suite.drafters.slab.listing import Bounds, SlabEntry, State, beyond_bounds
from dflash_suite.drafters.slab.store import slab_directory
from tests.kit.tiny_drafter import save_drafter

DAY = 86_400.0


def entry(name: str, size: int, used: float, state: State = "current") -> SlabEntry:
    return SlabEntry(Path(name), state, size, "", used_sec=used)


def names(entries: list[SlabEntry]) -> list[str]:
    return [str(one.path) for one in entries]


def test_the_least_recently_used_go_first() -> None:
    now = 100 * DAY
    slabs = [
        entry("new", 30, now - DAY),
        entry("old", 40, now - 50 * DAY, "touched"),
        entry("middle", 50, now - 20 * DAY),
        entry("busy", 90, now - 90 * DAY, "busy"),
        entry("foreign", 90, now - 90 * DAY, "foreign"),
    ]
    assert names(beyond_bounds(slabs, Bounds(), now)) == []
    assert names(beyond_bounds(slabs, Bounds(30), now)) == ["old"]
    assert names(beyond_bounds(slabs, Bounds(None, 80), now)) == ["old"]
    assert names(beyond_bounds(slabs, Bounds(None, 79), now)) == ["old", "middle"]
    assert names(beyond_bounds(slabs, Bounds(30, 30), now)) == ["old", "middle"]
    assert names(beyond_bounds(slabs, Bounds(0, None), now)) == ["old", "middle", "new"]
    assert names(beyond_bounds(slabs, Bounds(None, 0), now)) == ["old", "middle", "new"]


def test_the_command_removes_what_is_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    slab_directory().mkdir(parents=True)
    used = time.time() - 40 * DAY
    made = []
    for number in range(3):
        directory = save_drafter(tmp_path / f"d{number}")
        assert CliRunner().invoke(app, ["quantize", str(directory)]).exit_code == 0
        (slab,) = [one for one in directory.iterdir() if one.suffix == ".slab"]
        made.append(slab.rename(slab_directory() / f"d{number}-{slab.name}"))
        os.utime(made[-1], (used, used))
    done = CliRunner().invoke(app, ["quantize", "--prune", "--older-than", "60"])
    assert "nothing to remove" in done.stdout
    done = CliRunner().invoke(app, ["quantize", "--prune", "--to", str(made[0].stat().st_size)])
    assert "removed 2" in done.stdout and len(list(slab_directory().iterdir())) == 1
    done = CliRunner().invoke(app, ["quantize", "--prune", "--older-than", "30"])
    assert "removed 1" in done.stdout


@pytest.mark.parametrize(
    ("text", "size"), [("20GB", 20 * 10**9), ("1.5 mb", 1_500_000), ("7", 7), ("0", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1PB", "1e9", "9" * 400])
def test_bad_sizes_are_usage_errors(text: str) -> None:
    with pytest.raises(OptionError, match="expected a number and"):
        parse_size(text)


def test_bounds_belong_to_prune() -> None:
    for more in (["--older-than", "3"], ["--to", "1GB"]):
        done = CliRunner().invoke(app, ["quantize", "--list", *more])
        assert done.exit_code == 2 and "give --prune" in " ".join(done.stderr.split())


def test_stored_probes_are_listed_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CliRunner().invoke(app, ["doctor", "--list-probes"]).stdout == "no stored probes\n"
    key = ProbeKey("/model", "float32", "stock", "cpu X", "w", "1", "2", "3", "/drafter 4-bit", "d")
    save_probe(key, StoredProbe("2026-01-02", block=4))
    (probe_directory() / "other.json").write_text("{}")
    listed = CliRunner().invoke(app, ["doctor", "--list-probes"]).stdout
    assert "2026-01-02 /model with /drafter 4-bit, float32" in listed
    assert "not a stored probe" in listed
    cleared = CliRunner().invoke(app, ["doctor", "--clear-probes", "--json"])
    found = json.loads(cleared.stdout)["probes"]
    assert sorted(one["removed"] for one in found) == [False, True]
    assert [path.name for path in probe_directory().iterdir()] == ["other.json"]
