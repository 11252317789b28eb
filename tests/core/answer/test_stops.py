"""Stop strings: the one that is complete first, whatever the portions of the text are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_suite.core.answer.stops import StopSearch, longest_overlap

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "stop", "given_out", "found"),
    [
        ("abcSTOPdef", ["STOP"], "abc", "STOP"),
        ("abcSTO", ["STOP"], "abcSTO", None),
        ("abcd", ["bcd", "c"], "ab", "c"),  # complete first, though the other begins first
        ("abc", ["c", "bc"], "a", "bc"),  # of those that end together
        ("aaab", ["aab"], "a", "aab"),
        ("abc", [], "abc", None),
    ],
)
def test_what_is_let_out(text: str, stop: list[str], given_out: str, found: str | None) -> None:
    for portions in ([text], list(text)):
        search = StopSearch(stop)
        out = "".join(map(search.feed, portions))
        assert (out + search.flush(), search.found) == (given_out, found)
        assert search.feed("more") == ("" if found else "more")


def test_the_longest_end_that_could_become_one() -> None:
    assert longest_overlap("xST", ["STOP", "xSTAY"]) == 3
    assert longest_overlap("xSTOP", ["STOP"]) == 0, "a whole one is no beginning"
    assert longest_overlap("x", []) == 0


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
       st.lists(st.integers(0, 12)))  # fmt: skip
def test_portions_make_no_difference(text: str, stop: list[str], cuts: list[int]) -> None:
    ends = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole, parts = StopSearch(stop), StopSearch(stop)
    wanted = whole.feed(text) + whole.flush()
    out = "".join(parts.feed(text[a:b]) for a, b in zip(ends, ends[1:], strict=False))
    assert (out + parts.flush(), parts.found) == (wanted, whole.found)
    assert (whole.found is None) == (not any(one in text for one in stop))
