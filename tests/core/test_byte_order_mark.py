"""A byte order mark in front of a text is no part of it, whichever way the text comes in."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_suite.cli.input.prompt import read_prompt, read_text_file
from dflash_suite.core.settings import read_settings
from dflash_suite.drafters.bench.prompts import read_prompt_file

MARK = "\ufeff"
TEXT = "def f():\n"


def test_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompt"
    file.write_text(MARK + TEXT, encoding="utf-8")
    assert read_text_file(file) == TEXT
    assert read_prompt(None, file, patient=True).text == TEXT
    assert read_prompt(MARK + TEXT, None, patient=True).text == TEXT
    stdin = SimpleNamespace(buffer=io.BytesIO((MARK + TEXT).encode()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert read_prompt("-", None, patient=True).text == TEXT
    assert read_prompt(None, file, patient=True).text.encode() == TEXT.encode()


def test_prompts_of_a_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(MARK + "one\ntwo\n", encoding="utf-8")
    assert [record["text"] for record in read_prompt_file(file)] == ["one", "two"]


def test_settings(tmp_path: Path) -> None:
    (tmp_path / "dflash.toml").write_text(MARK + "max_tokens = 7\n", encoding="utf-8")
    assert read_settings(tmp_path)["max_tokens"].value == 7
