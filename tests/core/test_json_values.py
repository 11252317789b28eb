"""Reading JSON of others: typed look-ups whose errors name the place, the value and what was
expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.errors import ConfigError, ModelNotFound, PromptError
from dflash_suite.core.json_values import (
    LONGEST_SHOWN,
    Fields,
    Kind,
    bounded,
    checked,
    is_number,
    is_whole,
    parse_json,
    parse_object,
    read_json,
    shown,
)

FILE = Path("some") / "config.json"


def fields(inner: dict[str, Any], outer: dict[str, Any] | None = None) -> Fields:
    return Fields(FILE, (("inner.", inner), ("", outer or {})))


def test_the_first_place_that_has_a_key_wins() -> None:
    both = fields({"a": 1}, {"a": 2, "b": 3})
    assert both.integer("a") == 1 and both.integer("b") == 3
    assert both.raw("a") == ("inner.a", 1) and both.raw("b") == ("b", 3)
    assert both.raw("c") is None
    assert fields({"a": None}, {"a": 2}).integer("a") == 2, "null is absent"


def test_a_missing_key_names_every_place() -> None:
    with pytest.raises(ConfigError) as caught:
        fields({}).integer("size")
    assert str(FILE) in str(caught.value)
    assert "'inner.size' or 'size' is missing; it has no safe default" in str(caught.value)


def test_defaults_and_minimum() -> None:
    assert fields({}).integer("size", 7) == 7
    assert fields({"size": 0}).integer("size", minimum=0) == 0
    with pytest.raises(ConfigError, match="'inner.size' is 0, expected at least 1"):
        fields({"size": 0}).integer("size", 7)
    assert fields({}).number("eps", 0.5) == 0.5
    assert fields({"eps": 2}).number("eps") == 2.0
    assert fields({}).boolean("flag") is None
    assert fields({"flag": False}).boolean("flag") is False
    assert fields({"ids": [3, 1]}).integers("ids") == (3, 1), "in the file's order"


WRONG: list[tuple[str, Any, str]] = [
    ("integer", "8", "a whole number"),
    ("integer", 8.0, "a whole number"),
    ("integer", True, "a whole number"),
    ("integer", [8], "a whole number"),
    ("number", "1e-6", "a number"),
    ("number", True, "a number"),
    ("number", float("nan"), "a finite number"),
    ("number", float("inf"), "a finite number"),
    ("number", float("-inf"), "a finite number"),
    ("boolean", 1, "true or false"),
    ("boolean", "true", "true or false"),
    ("integers", 3, "a list of whole numbers"),
    ("integers", [1, 2.0], "a list of whole numbers"),
    ("integers", [1, True], "a list of whole numbers"),
    ("integers", {"a": 1}, "a list of whole numbers"),
]


@pytest.mark.parametrize(("method", "value", "expected"), WRONG)
def test_a_wrong_type_names_key_value_and_expectation(
    method: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(fields({"key": value}), method)("key")
    assert str(caught.value) == f"{FILE}: 'inner.key' is {value!r}, expected {expected}"


def test_read_json(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with pytest.raises(ModelNotFound, match="does not exist: give the directory"):
        read_json(file)
    file.write_text('{"a": 1}', encoding="utf-8")
    assert read_json(file) == {"a": 1}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path)
    for text, message in (
        ("{", "is not JSON \\("),
        ("[1]", "holds a list, expected a JSON object"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON .*digits"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message) as caught:
            read_json(file)
        assert str(caught.value).startswith(str(file)) and "fetch the file again" in str(
            caught.value
        )


def test_every_bad_text_is_a_value_error() -> None:
    for text in ("", "nope", "[" * 100_000, "9" * 5000, b"\xff", '{"a": '):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json(b"[1, null]") == [1, None]


def test_a_line_is_an_object_or_the_error_that_was_asked_for() -> None:
    assert parse_object('{"a": 1}', "line 1", PromptError) == {"a": 1}
    with pytest.raises(PromptError, match=r"^line 1 is not JSON \(.*\); give one a line$"):
        parse_object("{", "line 1", PromptError, "; give one a line")
    with pytest.raises(PromptError, match="^line 2 holds a str, expected a JSON object$"):
        parse_object('"x"', "line 2", PromptError)


KINDS: list[tuple[Kind, list[Any], list[Any]]] = [
    ("text", ["", "a"], [None, 1, ["a"]]),
    ("whole", [0, -1, 10**30], [True, 1.0, "1", None]),
    ("number", [0, 1.5, 10**300], [True, "1", None, float("nan"), float("inf"), 10**400]),
    ("switch", [True, False], [0, 1, "true", None]),
    ("texts", [[], ["a"]], ["a", [1], [None], ("a",)]),
    ("object", [{}, {"a": 1}], [[], "x", None]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), KINDS, ids=[kind for kind, _, _ in KINDS])
def test_each_kind_takes_its_own(kind: Kind, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert checked(kind, "here", value) == value
    for value in bad:
        with pytest.raises(ValueError, match="^here is .*, expected "):
            checked(kind, "here", value, ValueError)


def test_bounds_hold_at_both_ends() -> None:
    assert [bounded("'block'", value, 2, 64) for value in (2, 64)] == [2, 64]
    for value in (1, 65, True, 2.0, "8", None):
        with pytest.raises(ConfigError, match=r"^'block' is .*, expected 2\.\.64$"):
            bounded("'block'", value, 2, 64)


def test_true_is_no_number_and_huge_ones_are_no_floats() -> None:
    assert is_whole(1) and not is_whole(True)
    assert is_number(1) and not is_number(True) and not is_number(10**400)
    with pytest.raises(ConfigError, match="expected a finite number"):
        fields({"eps": 10**400}).number("eps")


def test_a_message_stays_readable_whatever_it_repeats() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown("a") == "'a'"
    assert shown(deep) == "list, too large to be shown"
    assert shown(10**5000) == "int, too large to be shown"
    assert len(shown("a" * 10_000)) == LONGEST_SHOWN + 3
