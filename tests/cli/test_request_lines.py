"""`--requests` never dies of a line, whatever the line holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dflash_suite.cli.actions.requests import Defaults, answer
from dflash_suite.core.options import GenerateOptions
from dflash_suite.drafters.engine import Engine, from_pair
from dflash_suite.drafters.pair import Pair
from tests.kit.request_lines import any_line

DEFAULTS = Defaults(GenerateOptions(max_tokens=2, gate=False), "auto")
GOOD = b'{"prompt": "def f(", "max_tokens": 3}'
SEEN: list[dict[str, Any]] = []


@pytest.fixture(scope="module")
def engine(bundled_pair: Pair) -> Engine:
    return from_pair(replace(bundled_pair, reserve=None))


def document(engine: Engine, line: bytes, defaults: Defaults = DEFAULTS) -> dict[str, Any]:
    """The line's answer, as it is written."""
    result: dict[str, Any] = json.loads(
        json.dumps(answer(engine, 1, line, defaults), allow_nan=False)
    )
    return result


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(line=any_line())
def test_every_line_is_answered(engine: Engine, line: bytes) -> None:
    found = document(engine, line)
    SEEN.append(found)
    assert found["line"] == 1
    if "error" in found:
        assert set(found["error"]) == {"type", "message"} and "token_ids" not in found
        assert all(isinstance(text, str) and text for text in found["error"].values())
    else:
        assert 1 <= len(found["token_ids"]) <= 2


def test_both_outcomes_came_and_the_next_line_is_answered_as_ever(engine: Engine) -> None:
    answered = [one for one in SEEN if "error" not in one]
    assert 10 < len(answered) < len(SEEN) - 10
    assert len({one["error"]["message"][:20] for one in SEEN if "error" in one}) > 10
    kept = ("text", "token_ids", "speculation", "sampling")
    fresh = Engine(engine.target, engine.tokenizer, engine.drafters)
    after, alone = document(engine, GOOD), document(fresh, GOOD)
    assert {name: after[name] for name in kept} == {name: alone[name] for name in kept}


def test_an_error_without_a_text_has_a_message(engine: Engine) -> None:
    class Mute(Engine):
        def complete(self, request: Any) -> Any:
            raise AssertionError

    found = document(Mute(engine.target, engine.tokenizer), GOOD)
    assert found["error"] == {"type": "AssertionError", "message": "AssertionError"}


@pytest.mark.parametrize("name", ["gate", "profile", "chat", "exact", "continue"])
def test_a_switch_is_true_or_false(engine: Engine, name: str) -> None:
    line = json.dumps({"prompt": "x", name: 1}).encode()
    assert document(engine, line)["error"]["message"] == f"{name} is 1, expected true or false"


def test_a_line_says_how_it_is_decoded(engine: Engine) -> None:
    def asked(**fields: Any) -> dict[str, Any]:
        return document(engine, json.dumps({"prompt": "def f(", **fields}).encode())

    plain = asked(max_tokens=8)
    assert plain["stats"]["plain_steps"] == 0 and "phase_sec" not in plain["stats"]
    assert asked(max_tokens=8, gate=True)["stats"]["plain_steps"] >= 2
    assert asked(profile=True)["stats"]["phase_sec"]["verify"] > 0
    assert asked(chat=True)["prompt_tokens"] > asked(chat=False)["prompt_tokens"]
    assert "error" not in asked(exact=False)
    refused = asked(exact=True)["error"]["message"]
    assert refused == "exact is true, and this run was started without --exact"


def test_the_commands_options_are_the_lines_defaults(engine: Engine) -> None:
    defaults = replace(DEFAULTS, options=replace(DEFAULTS.options, profile=True))
    assert document(engine, GOOD, defaults)["stats"]["phase_sec"]
    other = GOOD.replace(b"3}", b'3, "profile": false}')
    assert "phase_sec" not in document(engine, other, defaults)["stats"]
