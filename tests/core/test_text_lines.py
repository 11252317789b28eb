"""Lines of files end at line feeds, whatever else Python would end them at."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from dflash_suite.cli.input.prompt_file import read_prompt_lines
from dflash_suite.core.json_values import text_lines
from dflash_suite.drafters.bench.prompts import read_prompt_file
from dflash_suite.drafters.slab.store import UNWRITABLE

pytestmark = pytest.mark.quick

OTHERS = "a\u2028b\u0085c\x0bd\x0ce\x1cf\u2029g\rh"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_prompt_is_not_cut_in_two(end: str, tmp_path: Path) -> None:
    line = json.dumps({"text": OTHERS}, ensure_ascii=False)
    jsonl, plain = tmp_path / "prompts.jsonl", tmp_path / "prompts.txt"
    jsonl.write_text(end.join([line, line, ""]), encoding="utf-8", newline="")
    plain.write_text(end.join([OTHERS, "second"]), encoding="utf-8", newline="")
    assert [one["text"] for one in read_prompt_lines(jsonl)] == [OTHERS] * 2
    assert [one["text"] for one in read_prompt_lines(plain)] == [OTHERS, "second"]
    assert [one["text"] for one in read_prompt_file(jsonl)] == [OTHERS] * 2
    assert [one["text"] for one in read_prompt_file(plain)] == [OTHERS, "second"]


def test_lines_by_hand() -> None:
    assert text_lines("") == []
    assert text_lines("\n") == [""]
    assert text_lines("a\r\n\nb") == ["a", "", "b"]


def test_what_a_network_mount_answers_to_a_lock_is_known() -> None:
    """45 is macOS's ENOTSUP; `make room` was said of it."""
    assert {errno.ENOTSUP, errno.ENOSYS, 45} <= set(UNWRITABLE)
