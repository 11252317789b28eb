"""Hub ids against a hub on localhost: fetched once, used offline, resumed or reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_suite.core.checkpoint.hub import HubId, hub_id
from tests.kit.families import save_family
from tests.kit.hub_stub import REPOSITORY, SHA, Hub, serve
from tests.kit.places import ROOT

RESOLVE = """
import sys
from dflash_suite.core.errors import DflashError
from dflash_suite.core.checkpoint.hub import resolve_directory
try:
    print(resolve_directory(sys.argv[1]))
except DflashError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
BIG = "model.safetensors"


def run(
    arguments: list[str], home: Path, endpoint: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A process of its own: the hub client reads its environment once, when it is imported."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited
        | {"PYTHONPATH": str(ROOT / ".src"), "HF_HOME": str(home), "HF_ENDPOINT": endpoint}
        | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def resolve(home: Path, hub: Hub, reference: str = REPOSITORY) -> Path:
    done = run(["-c", RESOLVE, reference], home, hub.url)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target as a repository has it, with a second copy of the weights in `original/`."""
    directory = save_family(tmp_path_factory.mktemp("repository"), "qwen3")
    (directory / "original").mkdir()
    (directory / "original" / BIG).write_bytes(b"second copy")
    (directory / "model.py").write_text("raise SystemExit('never run')")
    return directory


def test_fetched_once_then_used_without_the_network(checkpoint: Path, tmp_path: Path) -> None:
    with serve(checkpoint) as hub:
        found = resolve(tmp_path, hub)
        assert found.parts[-2:] == ("snapshots", SHA)
        names = sorted(path.name for path in found.iterdir())
        assert names == ["config.json", BIG, "tokenizer.json", "tokenizer_config.json"]
        for name in names:
            assert (found / name).read_bytes() == (checkpoint / name).read_bytes()
        assert hub.gets(BIG) == ["-"]
        assert resolve(tmp_path, hub) == found
        assert hub.gets(BIG) == ["-"], "fetched a second time"
    command = ["-m", "dflash_suite.cli", "generate", "--raw", "hi", "-n", "3", "-q"]
    command += ["-m", REPOSITORY, "-s", "none"]
    # The hub is gone: its address refuses connections; then no connection is tried at all.
    gone = run(command, tmp_path, hub.url)
    assert gone.returncode == 0, gone.stderr
    offline = run(["-c", RESOLVE, REPOSITORY], tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert Path(offline.stdout.strip()) == found


def test_a_broken_connection_is_resumed_where_it_broke(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    data = bytes(range(256)) * 80_000  # the client writes in parts of 10 MiB
    (repository / BIG).write_bytes(data)
    with serve(repository) as hub:
        hub.cut = {BIG: [12_000_000]}
        found = resolve(tmp_path / "home", hub)
        assert hub.gets(BIG) == ["-", f"bytes={10 * 2**20}-"]
    assert (found / BIG).read_bytes() == data


def test_a_short_file_is_reported_and_nothing_of_it_stays(checkpoint: Path, tmp_path: Path) -> None:
    with serve(checkpoint) as hub:
        hub.short = {BIG}
        failed = run(["-c", RESOLVE, REPOSITORY], tmp_path, hub.url)
        assert failed.returncode == 1 and "Traceback" not in failed.stderr
        assert f"ModelNotFound: hub id {REPOSITORY} could not be fetched" in failed.stderr
        assert "Consistency check failed" in failed.stderr and "try again" in failed.stderr
        left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
        assert not [name for name in left if name in (BIG, "incomplete")]
        hub.short = set()
        found = resolve(tmp_path, hub)
        assert (found / BIG).read_bytes() == (checkpoint / BIG).read_bytes()


def test_an_id_that_is_not_there(checkpoint: Path, tmp_path: Path) -> None:
    with serve(checkpoint) as hub:
        missing = run(["-c", RESOLVE, "owner/none"], tmp_path, hub.url)
    assert missing.returncode == 1 and "Traceback" not in missing.stderr
    assert "hub id owner/none could not be fetched" in missing.stderr
    assert "give a directory" in missing.stderr


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("owner/name", HubId("owner/name")),
        ("owner/name@v1.2", HubId("owner/name", "v1.2")),
        ("https://huggingface.co/owner/name", HubId("owner/name")),
        ("https://huggingface.co/owner/name/", HubId("owner/name")),
        ("https://huggingface.co/owner/na-me.4/tree/main", HubId("owner/na-me.4", "main")),
        ("huggingface.co/owner/name/blob/abc/config.json?x=1", HubId("owner/name", "abc")),
        ("https://hf.co/owner/name#files", HubId("owner/name")),
        ("hf://owner/name@r", HubId("owner/name", "r")),
        ("owner", None),
        ("./owner/name", None),
        ("owner/name/more", None),
        ("owner/name@", None),
        ("owner/name@a b", None),
        ("https://example.org/owner/name", None),
    ],
)
def test_what_a_reference_names(reference: str, expected: HubId | None) -> None:
    assert hub_id(reference) == expected


def test_a_revision_is_fetched_and_used_offline(checkpoint: Path, tmp_path: Path) -> None:
    """`owner/name@revision` ended in a text that spoke of the network."""
    with serve(checkpoint) as hub:
        found = resolve(tmp_path, hub, f"{REPOSITORY}@v1")
        assert found.parts[-2:] == ("snapshots", SHA)
        assert any("/revision/v1" in line for line in hub.requests)
        page = f"https://huggingface.co/{REPOSITORY}/tree/v1"
        assert resolve(tmp_path, hub, page) == found
    offline = run(["-c", RESOLVE, f"{REPOSITORY}@v1"], tmp_path, hub.url, HF_HUB_OFFLINE="1")
    assert Path(offline.stdout.strip()) == found, offline.stderr


FETCH_AS_MLX_LM = """
import sys
from mlx_lm.utils import _download
print(_download(sys.argv[1]))
"""


@pytest.mark.thinned(2)
@pytest.mark.parametrize("offline", [True, False])
def test_what_mlx_lm_downloaded_is_used_offline(offline: bool, tmp_path: Path) -> None:
    """It was refused, because folders that mlx-lm leaves out were asked for."""
    repository = save_family(tmp_path / "repository", "qwen3")
    for folder in ("onnx", "extra"):
        (repository / folder).mkdir()
        (repository / folder / BIG).write_bytes(b"other weights")
    with serve(repository) as hub:
        fetched = run(["-c", FETCH_AS_MLX_LM, REPOSITORY], tmp_path / "home", hub.url)
        assert fetched.returncode == 0, fetched.stderr
    variables = {"HF_HUB_OFFLINE": "1"} if offline else {}
    found = run(["-c", RESOLVE, REPOSITORY], tmp_path / "home", hub.url, **variables)
    assert found.stdout == fetched.stdout, found.stderr


def test_only_the_folder_of_a_head_is_fetched(tmp_path: Path) -> None:
    repository = save_family(tmp_path / "repository", "qwen3")
    for folder in ("mtp", "mt", "mtp2", "onnx", "m/a"):
        (repository / folder).mkdir(parents=True)
        (repository / folder / "weights.safetensors").write_bytes(b"x" * 10)
    with serve(repository) as hub:
        found = resolve(tmp_path / "home", hub)
    there = {str(path.relative_to(found)) for path in found.rglob("*.safetensors")}
    assert there == {BIG, "mtp/weights.safetensors", "mt/weights.safetensors"}
