"""The figures' file: rows merge by id, and the table reads goals the right way round."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit.places import GPU_BENCH

pytestmark = pytest.mark.quick

FOLDER = GPU_BENCH


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads a file of the folder as a script's import would."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_rows_merge_by_id_and_keep_the_others(bench: Any, tmp_path: Path) -> None:
    results = bench("results")
    file = tmp_path / "results.json"
    results.merge(file, [results.Row("b-x", 1.0, 0.9, 1.1, 1.02), results.Row("a-x", 2.0, 2, 2)])
    results.merge(file, [results.summarize("b-x", [3.0, 1.0, 2.0], 1.02)])
    document = json.loads(file.read_text())
    assert [row["id"] for row in document["rows"]] == ["a-x", "b-x"]
    assert document["rows"][1] == {
        "id": "b-x", "value": 2.0, "low": 1.0, "high": 3.0, "goal": 1.02, "better": "lower",
    }  # fmt: skip
    assert results.known_ids(file) == {"a-x", "b-x"}
    assert {"device", "versions", "commit", "measured_at"} <= set(document)
    assert list(tmp_path.iterdir()) == [file]


def test_a_row_keeps_the_commit_that_measured_it(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = bench("results")
    file = tmp_path / "results.json"
    for commit, ids in (("one", "abc"), ("two", "b"), ("three", "cd"), ("two", "a")):
        monkeypatch.setattr(results, "commit", lambda commit=commit: commit)
        results.merge(file, [results.Row(f"x-{id}", 1.0, 1.0, 1.0) for id in ids])
    document = json.loads(file.read_text())
    assert document["commit"] == "two"
    assert document["measured_at"] == {"three": ["x-c", "x-d"]}


@pytest.mark.parametrize(
    ("better", "value", "goal", "expected"),
    [
        ("lower", 1.3, 1.35, "yes"),
        ("lower", 1.4, 1.35, "no"),
        ("higher", 2.8, 2.7, "yes"),
        ("higher", 2.6, 2.7, "no"),
        ("lower", 0.3, 0.3, "yes"),
        ("higher", 0.3, 0.3, "yes"),
        ("lower", 9.0, None, ""),
    ],
)
def test_a_goal_is_a_ceiling_or_a_floor(
    bench: Any, better: str, value: float, goal: float | None, expected: str
) -> None:
    bench("results")
    assert bench("table").met({"better": better, "value": value, "goal": goal}) == expected


def test_the_published_file_is_whole(bench: Any) -> None:
    bench("results")
    document = json.loads((FOLDER / "results.json").read_text())
    assert document["device"] and document["commit"]
    for row in document["rows"]:
        assert set(row) == {"id", "value", "low", "high", "goal", "better"}
        assert row["better"] in ("lower", "higher")
        assert row["low"] <= row["value"] <= row["high"]
        assert (row["goal"] is None) == row["id"].startswith("x-")
    assert len(bench("table").table().splitlines()) == len(document["rows"]) + 2
