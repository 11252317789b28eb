"""A hub id is diagnosed by range requests of headers, and from the local cache when offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.doctor.remote import is_wanted
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from tests.kit import hub_stub
from tests.kit.doctor_pairs import save_pair
from tests.kit.hub_stub import REPOSITORY
from tests.kit.places import ROOT
from tests.kit.published import Tensors, save_published
from tests.kit.tiny_drafter import save_drafter


def run_doctor(home: Path, endpoint: str, *arguments: str, **more: str) -> tuple[int, Any, str]:
    """(exit code, JSON document, stderr) of `dflash doctor --json` in a new process."""
    run = subprocess.run(
        [sys.executable, "-m", "dflash_suite.cli", "doctor", "--json", *arguments],
        capture_output=True, text=True, check=False,
        env={
            **os.environ, "PYTHONPATH": str(ROOT / ".src"), "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home), "TMPDIR": str(home.parent), **more,
        },
    )  # fmt: skip
    return run.returncode, json.loads(run.stdout), run.stderr


def not_passed(document: Any, group: str) -> dict[str, str]:
    """Findings of a group that did not pass."""
    return {
        check["name"]: check["found"]
        for check in document["checks"]
        if check["status"] != "pass" and check["name"].startswith(group)
    }


def ranges(hub: hub_stub.Hub) -> list[str]:
    """What was asked of the weights."""
    return hub.gets("model.safetensors")


def test_only_the_header_is_fetched(tmp_path: Path) -> None:
    """16 MB of target, of which the first 100,000 bytes are asked for, once."""
    home = tmp_path / "home"
    with hub_stub.serve(BUNDLED / "target") as hub:
        code, document, errors = run_doctor(
            home, hub.url, REPOSITORY, "--drafter", "bundled:dflash2"
        )
        assert code == 0 and errors == ""
        assert ranges(hub) == ["bytes=0-99999"]
    found = {check["name"]: check["found"] for check in document["checks"]}
    assert not_passed(document, "target") == not_passed(document, "pair") == {}
    assert found["target.kind"] == "qwen3_5"
    size = (BUNDLED / "target" / "model.safetensors").stat().st_size
    assert found["machine.download"].startswith(f"{size / 1e6:.1f} MB to fetch")
    assert found["target.headers"].endswith(f"{size / 1e6:.1f} MB")
    assert document["model"] == REPOSITORY and document["routes"][0]["route"] == "dflash2"
    assert not list(tmp_path.glob("dflash-doctor-*"))
    assert not list(home.rglob("*.safetensors"))


def test_a_longer_header_is_read_whole(tmp_path: Path) -> None:
    """Numbered experts make headers of megabytes: the rest comes with a second range."""
    tensors: Tensors = {f"experts.{i}.gate_proj.weight": ("BF16", [8]) for i in range(1500)}
    drafter = save_published(tmp_path / "drafter", "Qwen3-4B-DFlash-b16", tensors=tensors)
    with hub_stub.serve(drafter) as hub:
        _, document, _ = run_doctor(tmp_path / "home", hub.url, REPOSITORY)
        first, second = ranges(hub)
    assert first == "bytes=0-99999" and second.startswith("bytes=100000-")
    found = {check["name"]: check["found"] for check in document["checks"]}
    assert found["drafter.headers"].startswith("1500 tensors")


def test_a_remote_file_without_a_header_is_a_finding(tmp_path: Path) -> None:
    drafter = save_drafter(tmp_path / "drafter")
    (drafter / "model.safetensors").write_bytes(b"<!DOCTYPE html>" * 30)
    with hub_stub.serve(drafter) as hub:
        code, document, _ = run_doctor(tmp_path / "home", hub.url, REPOSITORY)
    assert code == 1
    assert "has no safetensors header" in next(iter(not_passed(document, "target").values()))


def test_an_unknown_repository_is_a_finding(tmp_path: Path) -> None:
    with hub_stub.serve(BUNDLED / "dflash") as hub:
        code, document, _ = run_doctor(tmp_path / "home", hub.url, "owner/missing")
    assert code == 1
    assert "RepositoryNotFoundError" in not_passed(document, "target")["target.kind"]


def test_offline_the_local_cache_is_read(tmp_path: Path) -> None:
    """A whole snapshot is read where it is; without one, the error says what to do."""
    home, repository = tmp_path / "home", tmp_path / "home" / "hub" / "models--a--b"
    (repository / "snapshots").mkdir(parents=True)
    save_pair(repository / "snapshots" / hub_stub.SHA)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(hub_stub.SHA)
    nowhere = "http://127.0.0.1:9"
    code, document, _ = run_doctor(home, nowhere, "a/b", HF_HUB_OFFLINE="1")
    assert code == 0 and not_passed(document, "target") == {}
    code, document, _ = run_doctor(home, nowhere, "a/unknown", HF_HUB_OFFLINE="1")
    assert code == 1
    assert "a/unknown could not be read" in not_passed(document, "target")["target.kind"]


def test_a_drafter_of_the_hub_is_fetched_once(tmp_path: Path) -> None:
    """It is looked at twice, as an MTP head's folder and as a drafter."""
    with hub_stub.serve(BUNDLED / "dflash") as hub:
        target = BUNDLED / "target"
        code, document, _ = run_doctor(
            tmp_path / "home", hub.url, str(target), "--drafter", REPOSITORY
        )
        assert code == 0 and document["routes"][0]["route"] == "dflash"
        assert ranges(hub) == ["bytes=0-99999"]


@pytest.mark.parametrize("name", ["../x.json", "/etc/x.json", "a/../../x.safetensors", "x" * 300])
def test_a_repository_names_no_file_elsewhere(name: str) -> None:
    """Headers are written where the hub's listing says."""
    assert not is_wanted(name, 10)
    assert is_wanted("config.json", 10) and is_wanted("model.safetensors", 10**12)
