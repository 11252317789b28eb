"""`dflash generate --requests`: a result a line, in order; a bad line is answered and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.request import Request

BUNDLED = Path(__file__).parents[2] / "drafters" / "bundled"
CODE = "def fibonacci(n):\n"
GOOD: list[dict[str, Any]] = [
    {"id": "a", "prompt": CODE, "max_tokens": 12},
    {"prompt": CODE, "max_tokens": 12, "speculation": " MTP ", "draft_tokens": 5},
    {"prompt": CODE, "max_tokens": 12, "speculation": "none"},
    {"prompt": CODE, "max_tokens": 12, "temperature": 0.9, "seed": 5, "speculation": "dflash"},
    {"messages": [{"role": "user", "content": "a stack"}], "max_tokens": 8},
    {"prompt": [7, 8, 9], "max_tokens": 5, "block_size": 3},
    {"prompt": CODE, "max_tokens": 12, "stop": "fib", "repetition_penalty": 1.2},
    {"prompt": CODE, "max_tokens": 12, "logit_bias": {"263": -50}},
]
BAD = {
    "nope": "the line is not JSON",
    '{"prompt": "x", "id": NaN}': "the line is not JSON: 'id' is nan",
    '{"prompt": "x", "temperature": -Infinity}': "the line is not JSON: 'temperature' is -inf",
    "[]": "expected a JSON object",
    '{"prompt": "x", "colour": 1}': "unknown field 'colour'",
    '{"prompt": "x", "speculation": "fast"}': "invalid 'speculation' value",
    '{"prompt": "x", "max_tokens": "a"}': "expected a whole number",
    '{"prompt": "x", "max_tokens": true}': "expected a whole number",
    '{"prompt": "x", "continue": 1}': "continue is 1, expected true or false",
    '{"prompt": "x", "speculation": 3}': "speculation is 3, expected a text",
    '{"prompt": "x", "reasoning": "bogus"}': "invalid 'reasoning' value 'bogus'",
    '{"prompt": "x", "reasoning": "off"}': "reasoning needs a chat template",
    '{"prompt": "x", "tools": [1]}': "tools is [1], expected a list of objects",
    '{"messages": [{"role": "user"}]}': "message 1 (user) has no content",
    '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}': "of type 'image_url'",
    '{"prompt": "x", "max_tokens": 0}': "max_tokens must be at least 1",
    '{"prompt": "x", "temperature": "hot"}': "expected a number",
    '{"prompt": "x", "seed": 1.5}': "expected a whole number",
    '{"prompt": "x", "logit_bias": [1]}': "expected an object of token ids",
    '{"prompt": "x", "stop": 3}': "expected a text or a list of texts",
    '{"prompt": 3}': "expected a text or a list of ids",
    '{"messages": "hello"}': "expected a list of objects",
    '{"messages": [{"content": "x"}]}': "expected an object with a role",
    '{"prompt": ""}': "the prompt has no tokens",
    '{"prompt": [5000]}': "outside the target's vocabulary",
    '{"prompt": "\\ud800"}': "the prompt is not UTF-8",
    f'{{"prompt": "x", "max_tokens": {"9" * 5000}}}': "the line is not JSON",
    '{"prompt": "x", "logit_bias": {"4096000000": 5}}': "outside the target's vocabulary",
    "{}": "either a prompt or messages",
    '{"prompt": "x", "messages": []}': "either a prompt or messages",
    '{"prompt": "x", "block_size": 99}': "above the 8 that this drafter was trained for",
}


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def serve(lines: list[str], *args: str) -> tuple[int, list[dict[str, Any]], str]:
    done = CliRunner().invoke(
        app,
        ["generate", "--requests", "-", "--no-gate", "--no-exact", *args],
        input="\n".join(lines),
    )
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_bad_lines_are_answered_and_the_rest_goes_on() -> None:
    good = [json.dumps(line) for line in GOOD]
    lines = [good[0], *BAD, "", *good[1:]]
    code, results, _ = serve(lines)
    assert code == 1
    assert [result["line"] for result in results] == [
        number for number, line in enumerate(lines, start=1) if line
    ]
    bad = results[1 : 1 + len(BAD)]
    for (line, message), result in zip(BAD.items(), bad, strict=True):
        assert message in result["error"]["message"], line
        assert "token_ids" not in result
    assert results[0]["id"] == "a"
    alone = [serve([line])[1][0] for line in (good[0], good[1], good[3], good[-1])]
    served = [results[0], *results[1 + len(BAD) :]]
    for one, other in zip(alone, (served[0], served[1], served[3], served[-1]), strict=True):
        assert one["token_ids"] == other["token_ids"] and one["text"] == other["text"]
        assert one["speculation"] == other["speculation"]
    plain = served[2]["token_ids"]
    assert served[0]["token_ids"] == served[1]["token_ids"] == plain
    assert [result["speculation"]["route"] for result in served[:3]] == ["dflash2", "mtp", "none"]
    assert "fib" not in served[6]["text"] and 263 not in served[7]["token_ids"]


def test_a_line_with_an_unknown_field_keeps_its_id() -> None:
    code, (unknown, broken), _ = serve(['{"id": [7], "prompt": "x", "colour": 1}', "nope"])
    assert code == 1 and unknown["id"] == [7] and "'colour'" in unknown["error"]["message"]
    assert "id" not in broken


def test_a_line_may_go_on_from_the_one_before() -> None:
    first = {"prompt": CODE, "max_tokens": 10}
    _, (result,), _ = serve([json.dumps(first)])
    start = [531, 292, 2584, 276, 698, 653, 1068, 291]
    further = {"prompt": [*start, *result["token_ids"], 7], "max_tokens": 6}
    lines = [json.dumps({**first, "prompt": start}), json.dumps({**further, "continue": True})]
    code, (_, warm), _ = serve(lines)
    _, (_, cold), _ = serve([lines[0], json.dumps(further)])
    assert code == 0
    assert warm["stats"]["reused_tokens"] == len(start) + 9 and not cold["stats"]["reused_tokens"]
    assert warm["token_ids"] == cold["token_ids"]


def test_what_a_line_leaves_out_is_the_command_s() -> None:
    line = json.dumps({"prompt": CODE})
    _, (found,), _ = serve([line], "-n", "4", "-s", "none", "--logit-bias", "263:-50")
    assert len(found["token_ids"]) == 4 and found["speculation"]["requested"] == "none"
    assert 263 not in found["token_ids"]


def test_requests_take_no_other_prompt(tmp_path: Path) -> None:
    for more in (["text"], ["--prompt-file", "x"]):
        done = CliRunner().invoke(app, ["generate", *more, "--requests", "-"])
        assert done.exit_code == 2 and "brings its own prompts" in done.stderr
    absent = CliRunner().invoke(
        app, ["generate", "--no-exact", "--requests", str(tmp_path / "absent")]
    )
    assert absent.exit_code == 1 and "cannot be read" in absent.stderr


def test_a_line_in_another_encoding_is_an_error_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "latin1"
    good = json.dumps({"prompt": CODE, "max_tokens": 2}).encode()
    file.write_bytes(good + b'\n{"prompt": "caf\xe9"}\r\n' + good)
    done = CliRunner().invoke(app, ["generate", "--no-exact", "--requests", str(file)])
    before, broken, after = map(json.loads, done.stdout.splitlines())
    assert done.exit_code == 1 and before["token_ids"] == after["token_ids"]
    assert broken["error"]["type"] == "PromptError" and "utf-8" in broken["error"]["message"]


def test_an_error_that_nobody_foresaw_ends_its_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Engine.encode

    def fails_once(engine: Engine, request: Request) -> list[int]:
        if request.max_tokens == 3:
            raise ZeroDivisionError("planted")
        return encode(engine, request)

    monkeypatch.setattr(Engine, "encode", fails_once)
    lines = [json.dumps({"prompt": CODE, "max_tokens": count}) for count in (2, 3, 2)]
    code, (before, broken, after), _ = serve(lines)
    assert code == 1 and before["token_ids"] == after["token_ids"]
    assert broken["error"] == {"type": "ZeroDivisionError", "message": "planted"}


def test_both_request_paths_give_one_document() -> None:
    """The keys of `--json` at every depth, and the same answer."""
    line = {"prompt": CODE, "max_tokens": 12, "speculation": "dflash"}
    _, (result,), _ = serve([json.dumps(line)])
    arguments = ["--raw", CODE, "-n", "12", "-s", "dflash", "--json", "--no-gate", "--no-exact"]
    document = json.loads(CliRunner().invoke(app, ["generate", *arguments]).stdout)
    assert (result.pop("schema"), document.pop("schema")) == (
        "dflash.result/2",
        "dflash.generate/1",
    )
    assert result.pop("line") == 1
    assert result.keys() == document.keys()
    for name, value in document.items():
        if isinstance(value, dict):
            assert result[name].keys() == value.keys(), name
    for name in ("text", "token_ids", "speculation", "identity", "sampling"):
        assert result[name] == document[name], name


def test_null_is_absent_and_the_command_decides() -> None:
    nulls = {name: None for name in ("speculation", "continue", "max_tokens", "stop", "seed", "id")}
    lines = [json.dumps({"prompt": CODE}), json.dumps({"prompt": CODE, **nulls})]
    code, (one, other), _ = serve(lines, "-s", "dflash", "-n", "4")
    assert code == 0 and one["token_ids"] == other["token_ids"]
    assert one["speculation"] == other["speculation"]
    assert other["speculation"]["requested"] == "dflash"


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "requests"
    line = json.dumps({"prompt": CODE, "max_tokens": 3})
    file.write_text("\ufeff" + line, encoding="utf-8")
    _, (plain,), _ = serve([line])
    code, (marked,), _ = serve(["\ufeff" + line])
    found = CliRunner().invoke(app, ["generate", "--no-exact", "--requests", str(file)])
    assert code == found.exit_code == 0
    assert plain["token_ids"] == marked["token_ids"] == json.loads(found.stdout)["token_ids"]


def test_the_commands_system_prompt_and_reasoning_are_defaults() -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    chat = json.dumps({"messages": turns[1:], "max_tokens": 2})
    own = json.dumps({"messages": turns, "max_tokens": 2})
    inner = json.dumps({**json.loads(chat), "system": "Be brief."})
    raw = json.dumps({"prompt": "hi", "max_tokens": 2})
    _, (expected, stated), _ = serve([own, inner])
    _, (found, refused), _ = serve([chat, raw], "--system", "Be brief.")
    assert expected["prompt_tokens"] == stated["prompt_tokens"] == found["prompt_tokens"]
    assert expected["token_ids"] == found["token_ids"]
    assert "system needs a chat template" in refused["error"]["message"]
    _, (turned,), _ = serve([raw], "--system", "Be brief.", "--chat")
    assert turned["token_ids"] == found["token_ids"]
    for options in (["--reasoning", "bogus"], ["--raw", "--system", "x"]):
        done = CliRunner().invoke(app, ["generate", "--requests", "-", *options], input=raw)
        assert done.exit_code == 2


def made_for(positions: int, directory: Path, name: str) -> Path:
    """A bundled checkpoint whose config.json states as many positions; its files are links."""
    directory.mkdir()
    for file in (BUNDLED / name).iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file)
    config = json.loads((BUNDLED / name / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        if "max_position_embeddings" in part:
            part["max_position_embeddings"] = positions
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_line_beyond_the_targets_positions_is_refused(tmp_path: Path) -> None:
    model = made_for(24, tmp_path / "target", "target")
    lines = [{"prompt": [7] * 20, "max_tokens": 5}, {"prompt": [7] * 20, "max_tokens": 4}]
    code, (refused, done), _ = serve(
        [json.dumps(line) for line in lines], "-s", "none", "-m", str(model)
    )
    assert code == 1 and len(done["token_ids"]) == 4
    message = refused["error"]["message"]
    assert "20 prompt tokens and 5 more are beyond the 24 positions" in message


def test_a_long_answer_is_noted(tmp_path: Path) -> None:
    model = made_for(24, tmp_path / "target", "target")
    drafter = made_for(16, tmp_path / "drafter", "dflash2")
    pair = ["-m", str(model), "-d", str(drafter), "--drafter-bits", "16"]
    done = CliRunner().invoke(
        app, ["generate", *pair, "--raw", "--no-exact", "-n", "2", "x = 1\n" * 20]
    )
    assert done.exit_code == 0, done.stderr
    assert "beyond the 24 positions that" in done.stderr
    assert "beyond the 16 positions that the dflash2 drafter was made for" in done.stderr
