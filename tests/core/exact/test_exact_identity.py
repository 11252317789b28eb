"""The script that compares all modes: in parts, and it finds an answer that differs."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_suite.drafters.pair import load_pair
from tests.long import exact_identity

ARGS = ["--prompts", "1", "--stdlib", "0", "--max-tokens", "14", "--width", "4", "--blocks", "3"]


@pytest.fixture(autouse=True, scope="module")
def loaded_once() -> Iterator[None]:
    """The script loads the same pairs at every start; here the first one's serve all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_identity, "load_pair", functools.cache(load_pair))
        yield


def test_it_goes_on_where_it_stopped_and_finds_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.jsonl"
    args = [*ARGS, "--results", str(file)]
    assert exact_identity.main([*args, "--seconds", "0"]) == 1
    assert "dflash 3: 1 answers are missing" in capsys.readouterr().out
    assert exact_identity.main(args) == 0
    printed = capsys.readouterr().out
    assert "plan: every pass at 4 rows" in printed and printed.endswith("identical\n")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["mode"] for line in lines[1:]] == [
        "none", "dflash2 3", "dflash 3", "mtp 3", "none as it is", "dflash2 4 as it is",
    ]  # fmt: skip
    monkeypatch.setattr(exact_identity, "answer", None)  # nothing is left to decode
    assert exact_identity.main(args) == 0
    other = json.loads(lines[2]) | {"sha256": "0" * 64}
    file.write_text("\n".join([*lines[:2], json.dumps(other), *lines[3:]]), encoding="utf-8")
    assert exact_identity.main(args) == 1
    assert "dflash2 3: other ids on" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="holds answers of another run"):
        exact_identity.main([*args, "--max-tokens", "15"])


@pytest.mark.long
def test_parts_share_the_prompts_and_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    args = [*ARGS, "--prompts", "2", "--max-tokens", "12"]
    for part, file in enumerate(files, 1):
        exact_identity.main([*args, "--part", f"{part}/2", "--results", str(file)])
        assert len(file.read_text(encoding="utf-8").splitlines()) == 1 + 6
    capsys.readouterr()
    assert exact_identity.main(["--merge", *map(str, files)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 prompts" in printed and printed.endswith("identical\n")
    assert exact_identity.main(["--merge", str(files[0])]) == 1, "half of the prompts are missing"
    assert "none: 1 answers are missing" in capsys.readouterr().out
    lines = files[1].read_text(encoding="utf-8").splitlines()
    other = json.loads(lines[2]) | {"sha256": "0" * 64}
    files[1].write_text("\n".join([*lines[:2], json.dumps(other), *lines[3:-1]]), encoding="utf-8")
    assert exact_identity.main(["--merge", *map(str, files)]) == 1
    assert "dflash2 3: other ids on" in capsys.readouterr().out
