"""Answers of an engine in typed pieces: stop strings, calls, an end before the end."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from dflash_suite.core.answer.calls import ToolCall
from dflash_suite.core.answer.split import AnswerText, Piece, Reasoning, merged
from dflash_suite.core.errors import OptionError
from dflash_suite.core.stats import PrefillProgress
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.pair import Pair
from dflash_suite.drafters.request import Request
from dflash_suite.drafters.split_answer import SplitAnswer, start_split
from tests.kit.marked_tokenizer import JSON_CALLS
from tests.kit.scripted_engine import TURNS, scripted_engine

ASKED = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
CALL = '<tool_call>{"name": "now"}</tool_call>'


def begun(directory: Path, text: str, template: str = TURNS, **asked: Any) -> SplitAnswer:
    engine = cast(Engine, scripted_engine(directory, [text], template))
    return start_split(engine, Request(messages=ASKED, **asked))


def pieces_of(turn: SplitAnswer) -> list[Piece]:
    return merged([one for one in turn if not isinstance(one, PrefillProgress)])


def test_thought_and_answer(tmp_path: Path) -> None:
    turn = begun(tmp_path, "<think>\nhm\n</think>\n\nYes.")
    assert pieces_of(turn) == [Reasoning("hm"), AnswerText("Yes.")]
    assert (turn.reasoning, turn.text, turn.calls, turn.reason) == ("hm", "Yes.", [], "stop")
    assert turn.count_tokens() == len("_\nhm\n_\n\nYes.") + 1, "markers are a token, eos is one"


def test_a_block_that_the_prompt_opened(tmp_path: Path) -> None:
    turn = begun(tmp_path, "hm</think>Yes.", TURNS + "<think>{{ '\\n' }}")
    assert pieces_of(turn) == [Reasoning("hm"), AnswerText("Yes.")]


def test_a_stop_string_in_the_answer_alone(tmp_path: Path) -> None:
    turn = begun(tmp_path, "<think>END</think>ab END cd", stop=("END",))
    assert pieces_of(turn) == [Reasoning("END"), AnswerText("ab ")]
    assert (turn.stop_string, turn.reason) == ("END", "stop")
    assert turn.count_tokens() == len("_END_ab END")
    assert len(turn.answer.generation.emitter.token_ids) == 12, "decoded in portions of three"


def test_calls_are_the_reason_where_the_model_ended_behind_one(tmp_path: Path) -> None:
    turn = begun(tmp_path, f"Now.\n{CALL}", TURNS + JSON_CALLS + "{% if tools %}{% endif %}",
                 tools=TOOLS)  # fmt: skip
    pieces_of(turn)
    assert (turn.text, turn.calls, turn.reason) == ("Now.", [ToolCall("now", "{}")], "tool_calls")


def test_a_call_that_was_cut_is_text_and_a_length(tmp_path: Path) -> None:
    turn = begun(tmp_path, CALL, TURNS + JSON_CALLS + "{% if tools %}{% endif %}", tools=TOOLS,
                 max_tokens=20)  # fmt: skip
    pieces_of(turn)
    assert (turn.text, turn.calls, turn.reason) == (CALL[:20], [], "length")


def test_an_end_between_two_events(tmp_path: Path) -> None:
    turn = begun(tmp_path, "abcd<t and so on")
    seen: list[Piece] = []
    with closing(iter(turn)) as events:
        for event in events:
            seen += [] if isinstance(event, PrefillProgress) else [event]
            if turn.text == "abcd":
                break
    assert turn.reason is None
    seen += turn.cut()
    assert merged(seen) == [AnswerText("abcd<t")] and turn.reason == "cancelled"
    assert turn.cut() == []


def test_a_stop_string_that_no_answer_could_use(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="empty stop string"):
        begun(tmp_path, "x", stop=("",))


def test_every_route_counts_the_same_tokens_and_the_next_turn_goes_on(
    bundled_pairs: dict[str, Pair], bundled_mtp: MtpDrafter
) -> None:
    pair = bundled_pairs["dflash2"]
    assert pair.drafter is not None
    messages = [{"role": "user", "content": "Write a class for a stack."}]
    ends = {}
    for route in ("none", "dflash", "mtp"):
        engine = Engine(pair.target, pair.tokenizer, [pair.drafter, bundled_mtp])
        request = Request(messages=messages, max_tokens=48, gate=False, stop=("self",),
                          speculation=route)  # fmt: skip
        turn = start_split(engine, request)
        pieces_of(turn)
        ends[route] = (turn.text, turn.count_tokens(), turn.reason)
        plain = engine.complete(request)
        assert ends[route] == (plain.text, len(plain.token_ids), plain.finish_reason)
        answered = {"role": "assistant", "content": turn.text}
        more = [*messages, answered, {"role": "user", "content": "More."}]
        second = start_split(engine, Request(messages=more, max_tokens=2, speculation=route))
        pieces_of(second)
        assert second.answer.generation.stats.reused_tokens > 8
    assert len(set(ends.values())) == 1 and "self" not in ends["none"][0]
    assert ends["none"][2] == "stop" and ends["none"][1] < 48
