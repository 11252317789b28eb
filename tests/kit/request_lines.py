"""Lines of a file of requests, good and bad, for hypothesis to choose from."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from dflash_suite.cli.actions.requests import REQUEST_FIELDS
from dflash_suite.cli.input.sampling_fields import SAMPLING_FIELDS

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([2**31, 2**32, 2**63, 2**64, 10**12, 10**30, -(10**30), 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "x", "auto", "none", "mtp", "on", "off", "\ud800", "\x00", "user", "é"]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "7"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.sampled_from(["def f(", "é", [5, 6, 7]]),
    "messages": st.just([{"role": "user", "content": "a stack"}]),
    "system": st.just("be brief"),
    "tools": st.just([{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    "reasoning": st.sampled_from(["on", "off"]),
    "max_tokens": st.integers(1, 2),
    "stop": st.sampled_from(["x", ["a", "b"]]),
    "speculation": st.sampled_from(["auto", "dflash", "none"]),
    "block_size": st.integers(2, 8),
    "draft_tokens": st.integers(1, 6),
    "temperature": st.sampled_from([0, 0.7, 1e-30]),
    "top_k": st.integers(0, 5),
    "top_p": st.sampled_from([1, 0.5, 1e-30]),
    "min_p": st.sampled_from([0, 0.1]),
    "seed": st.integers(0, 9),
    "repetition_penalty": st.sampled_from([1, 1.2]),
    "presence_penalty": st.sampled_from([0, 0.2]),
    "frequency_penalty": st.sampled_from([0, 0.2]),
    "penalty_window": st.sampled_from([1, 20, 10**12]),
    "logit_bias": st.just({"7": 1.5}),
    "exact": st.just(False),
}
"""Values that a line may have; a field that is not here is a switch, or takes anything (`id`)."""
NAMES = (*REQUEST_FIELDS, *SAMPLING_FIELDS)


@st.composite
def _objects(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly right fields beside a prompt, and now and then a wrong one."""
    fields: dict[str, Any] = {"prompt": draw(RIGHT["prompt"]), "max_tokens": 2}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True)):
        wrong = draw(st.integers(0, 3)) == 0
        fields[name] = draw(VALUES if wrong else RIGHT.get(name, st.booleans()))
    if "messages" in fields:
        del fields["prompt"]
    if draw(st.integers(0, 9)) == 0:
        fields[draw(st.text(max_size=6))] = draw(VALUES)
    return fields


def _written(value: object) -> bytes:
    return json.dumps(value).encode()


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A line with a few bytes changed, cut off, or put in."""
    line = bytearray(_written(draw(_objects())))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(line)))
        line[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(line).replace(b"\n", b" ")


def any_line() -> st.SearchStrategy[bytes]:
    """Whatever may stand in a line."""
    return st.one_of(
        _objects().map(_written),
        _objects().map(_written),
        _damaged(),
        VALUES.map(_written),
        st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" ")),
        st.sampled_from(
            [
                b"[" * 100_000,
                b'{"prompt": "x", "messages": ' + b"[" * 900 + b"]" * 900 + b"}",
                b'{"prompt": "x", "temperature": ' + b"9" * 400 + b"}",
                b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
            ]
        ),
    )
