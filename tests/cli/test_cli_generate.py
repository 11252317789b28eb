"""`dflash generate`: exit codes, stdout and stderr apart, JSON, prompts, Ctrl-C."""

from __future__ import annotations

import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli
from typer.testing import CliRunner, Result

from dflash_suite.cli.__main__ import main as cli_main
from dflash_suite.cli.app import app
from dflash_suite.cli.input.prompt import BUILT_IN
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from tests.kit.places import ROOT

ENV = {**os.environ, "PYTHONPATH": str(ROOT / ".src"), "NO_COLOR": "1", "COLUMNS": "80"}
ENV |= {"DFLASH_EXACT": "off"}
"""The check at load, which takes a second, is test_cli_exact.py's."""
SHORT = ["--max-tokens", "24", "--no-gate"]
PROMPT = "def fibonacci(n):\n"


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour and a fixed width, whatever the surroundings."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def run(*args: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["generate", "--no-exact", *args], input=stdin)


def document(*args: str, stdin: str | bytes | None = None) -> dict[str, Any]:
    result = run(*args, "--json", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return document("--raw", PROMPT, *SHORT, "--speculation", "none")


@pytest.mark.parametrize("drafter", ["bundled:dflash", "bundled:dflash2"])
def test_every_drafter_gives_the_plain_ids(plain: dict[str, Any], drafter: str) -> None:
    found = document("--raw", PROMPT, *SHORT, "-s", "dflash", "--drafter", drafter)
    assert found["token_ids"] == plain["token_ids"]
    assert found["text"] == plain["text"]
    stats = found["stats"]
    assert stats["rounds"] > 0 and 0 < stats["accepted"] < stats["drafted"]
    assert stats["emitted"] + stats["plain_steps"] + 1 == len(found["token_ids"])
    assert found["speculation"]["route"] == drafter.removeprefix("bundled:")
    assert plain["speculation"]["route"] == "none" and plain["stats"]["rounds"] == 0


def test_json_has_every_promised_field(plain: dict[str, Any]) -> None:
    assert set(plain) >= {
        "schema", "text", "token_ids", "finish_reason", "prompt_tokens", "speculation", "stats",
    }  # fmt: skip
    assert set(plain["speculation"]) >= {"requested", "route", "reason"}
    assert set(plain["stats"]) >= {
        "rounds", "drafted", "accepted", "emitted", "plain_steps", "tokens_per_round", "accepts",
        "trials", "tokens_per_second", "ttft_sec", "peak_memory_bytes",
    }  # fmt: skip
    assert plain["schema"] == "dflash.generate/1"
    assert plain["stats"]["tokens_per_round"] is None  # no round, so no figure


def test_streamed_text_is_the_whole_text(plain: dict[str, Any]) -> None:
    result = run("--raw", PROMPT, *SHORT)
    assert result.exit_code == 0
    assert result.stdout == plain["text"] + ("" if plain["text"].endswith("\n") else "\n")
    assert "route dflash2" in result.stderr and "tokens/round" in result.stderr
    assert "tok/s" in result.stderr and "first token" in result.stderr and "peak" in result.stderr


def test_quiet_says_nothing_on_stderr() -> None:
    assert run("--raw", PROMPT, "-n", "2", "--quiet").stderr == ""


def test_a_prompt_beyond_the_nominal_length_is_no_noise() -> None:
    """transformers warns about it on stderr, even under --quiet, unless its logger is lowered."""
    logger = logging.getLogger("transformers")
    logger.setLevel(logging.WARNING)
    assert run("--raw", "x = 1", "-n", "1", "--quiet").exit_code == 0
    assert logger.level == logging.ERROR


def test_stats_and_profile() -> None:
    result = run("--raw", PROMPT, *SHORT, "--stats", "--profile")
    assert "accept by draft position: " in result.stderr and "phases" in result.stderr
    assert "tok/s" not in result.stderr
    found = document("--raw", PROMPT, *SHORT, "--profile")
    assert found["stats"]["tokens_per_second"] is None
    assert set(found["stats"]["phase_sec"]) == {"draft", "verify", "accept", "rollback"}


@pytest.mark.parametrize("value", [" NONE ", "off", "None"])
def test_speculation_values_are_trimmed_and_lowered(value: str) -> None:
    found = document("--raw", PROMPT, "-n", "2", "--speculation", value)
    assert found["speculation"]["requested"] == "none"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--speculation", "fast"], "invalid 'speculation' value 'fast' (expected auto|"),
        (["--max-tokens", "0"], "max-tokens"),
        (["--block-size", "1"], "block-size"),
        (["--block-size", "9"], "--block-size 9 is above the 8"),
        (["--dtype", "int4"], "dtype 'int4' is unknown"),
        (["--stop", ""], "empty stop string"),
        (["--raw", "--system", "be brief"], "--system needs a chat template"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_usage_errors_exit_2(args: list[str], message: str) -> None:
    result = run("text", *args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def test_failures_exit_1_with_one_line(tmp_path: Path) -> None:
    for args in (
        ["x", "--model", str(tmp_path)],
        ["x", "--model", str(tmp_path / "absent")],
        ["x", "--drafter", "bundled:nothing", "-s", "dflash"],
        ["--prompt-file", str(tmp_path / "absent.txt")],
        ["x", "--model", "bundled:target", "--drafter", "bundled:target", "-s", "dflash"],
    ):
        result = run(*args)
        assert result.exit_code == 1, (args, result.output)
        assert result.stdout == ""
        assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_auto_says_why_it_takes_another_route(tmp_path: Path) -> None:
    """The drafter that stands beside the target is passed over; one that is named is an error."""
    for file in (BUNDLED / "target").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "drafter").mkdir()
    asked = ["--raw", PROMPT, "-n", "4", "--model", str(tmp_path)]
    found = document(*asked)
    assert found["speculation"]["route"] == "mtp"
    assert str(tmp_path / "drafter" / "config.json") in found["speculation"]["reason"]
    result = run(*asked)
    assert "route mtp: " in result.stderr and "config.json" in result.stderr
    named = run(*asked, "--drafter", str(tmp_path / "drafter"))
    assert named.exit_code == 1 and named.stdout == "" and "config.json" in named.stderr


@pytest.mark.parametrize("draft_tokens", [1, 3, 6])
def test_the_mtp_head_gives_the_plain_ids(plain: dict[str, Any], draft_tokens: int) -> None:
    more = ["-s", "mtp", "--draft-tokens", str(draft_tokens), "--block-size", "8"]
    found = document("--raw", PROMPT, *SHORT, *more)
    assert found["token_ids"] == plain["token_ids"] and found["text"] == plain["text"]
    stats = found["stats"]
    assert stats["rounds"] > 0 and 0 < stats["accepted"] < stats["drafted"]
    assert len(stats["trials"]) == draft_tokens
    assert stats["rounds_by_route"] == {"mtp": stats["rounds"]}
    assert found["speculation"]["route"] == "mtp" and found["speculation"]["reserve"] is None


def test_an_ignored_block_size_is_named() -> None:
    result = run("--raw", PROMPT, *SHORT, "-s", "mtp", "--block-size", "4")
    assert "up to 3 drafts a round (default)" in result.stderr
    assert "--block-size concerns DFlash alone" in result.stderr
    result = run("--raw", PROMPT, *SHORT, "-s", "dflash", "--block-size", "4")
    assert "--block-size concerns" not in result.stderr


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("-s", "dflash", "--mtp", "/nope"), {"--mtp"}),
        (("-s", "none", "-k", "2"), {"--draft-tokens"}),
        (("-s", "none", "--mtp", "/nope", "--block-size", "4"), {"--mtp", "--block-size"}),
        (("-s", "mtp", "-k", "2"), set()),
        (("-k", "2"), set()),  # the head is in reserve
        (("-s", "none"), set()),
    ],
)
def test_ignored_options_are_named(args: tuple[str, ...], named: set[str]) -> None:
    result = run("--raw", PROMPT, "-n", "2", *args)
    assert result.exit_code == 0
    notes = [line for line in result.stderr.splitlines() if "ignored" in line]
    assert {line.split()[0] for line in notes} == named and len(notes) == len(named)


def test_the_gate_is_on_by_default_and_counts_by_route(plain: dict[str, Any]) -> None:
    found = document("--raw", PROMPT, "--max-tokens", "24")
    assert found["token_ids"] == plain["token_ids"]
    speculation, stats = found["speculation"], found["stats"]
    assert (speculation["route"], speculation["reserve"]) == ("dflash2", "mtp")
    assert stats["plain_steps"] >= 3 and stats["rounds"] > 0  # it began by measuring
    counts = stats["rounds_by_route"]
    assert sum(counts.values()) == stats["rounds"] + stats["plain_steps"]
    assert counts["none"] == stats["plain_steps"]
    ungated = document("--raw", PROMPT, *SHORT)
    assert ungated["speculation"]["reserve"] is None and ungated["stats"]["plain_steps"] == 0


@pytest.mark.parametrize(
    "args", [["--draft-tokens", "0"], ["--draft-tokens", "7"], ["--mtp-hidden", "both"]]
)
def test_mtp_usage_errors_exit_2(args: list[str]) -> None:
    assert run("--raw", PROMPT, "-s", "mtp", *args).exit_code == 2


def test_none_opens_no_drafter_file(tmp_path: Path) -> None:
    found = document("--raw", PROMPT, "-n", "4", "-s", "none", "--drafter", str(tmp_path / "no"))
    assert found["speculation"]["reason"] == "speculation is off by request"


def test_prompt_sources_agree(tmp_path: Path, plain: dict[str, Any]) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(PROMPT.encode())
    for args, stdin in (
        (["--prompt-file", str(file)], None),
        (["-"], PROMPT),
        ([], PROMPT),
    ):
        found = document("--raw", "-n", "8", "-s", "none", *args, stdin=stdin)
        assert found["token_ids"] == plain["token_ids"][:8]


def test_a_silent_pipe_is_waited_for_only_where_a_model_was_named() -> None:
    """Without any wish but the defaults, a pipe that nobody writes to must not hang the command."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_suite.cli", "generate", "-n", "2"],
        env=ENV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.wait(timeout=60) == 0
    assert BUILT_IN.encode() in process.stderr.read()
    process.communicate()


def test_empty_stdin_means_the_built_in_prompt() -> None:
    result = run("-n", "2", stdin="")
    assert result.exit_code == 0 and BUILT_IN in result.stderr


def test_bad_prompts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"caf\xe9")
    assert "not UTF-8" in run("--prompt-file", str(file)).stderr
    assert run("--raw", "").exit_code == 1
    assert run("x", "--prompt-file", str(file)).exit_code == 2


@pytest.mark.parametrize("token", ["4096", "999999", "100000000", "4096000000", "9" * 20])
def test_a_biased_token_outside_the_vocabulary_is_refused(token: str) -> None:
    """mlx would write out of bounds: a crash without a word."""
    result = run("--raw", "x", "-n", "2", "--logit-bias", f"{token}:5")
    assert result.exit_code == 2 and f"names token {token}, which is outside" in result.stderr


def test_text_that_was_not_utf8_is_refused() -> None:
    for args in (["--raw", "\ud800"], ["\udcff"], ["x", "--system", "\udcff"]):
        result = run(*args, "-n", "2")
        assert result.exit_code == 1 and "not UTF-8" in result.stderr, args


@pytest.mark.thinned(2)
@pytest.mark.parametrize("close", ["<&-", ">&-", ">/dev/full"])
def test_a_closed_or_full_stream_is_no_traceback(close: str) -> None:
    if "full" in close and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = f'"{sys.executable}" -m dflash_suite.cli generate --raw x -n 2 -s none {close}'
    done = subprocess.run(["sh", "-c", command], env=ENV, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode == (1 if "full" in close else 0)
    assert (b"stdout cannot be written" in done.stderr) == ("full" in close)


def test_prompt_text_is_not_trimmed_and_special_tokens_are_parsed() -> None:
    spaced = document("--raw", "  def f():\n\n", "-n", "1")["prompt_tokens"]
    bare = document("--raw", "def f():", "-n", "1")["prompt_tokens"]
    assert spaced > bare
    special = document("--raw", "<|im_start|><|im_end|>", "-n", "1")
    assert special["prompt_tokens"] == 2


def test_chat_is_the_default_and_takes_a_system_message() -> None:
    by_default = document("hello", "-n", "1")
    assert by_default["prompt_tokens"] == document("hello", "-n", "1", "--chat")["prompt_tokens"]
    assert by_default["prompt_tokens"] > document("hello", "-n", "1", "--raw")["prompt_tokens"]
    with_system = document("hello", "-n", "1", "--system", "be brief")
    assert with_system["prompt_tokens"] > by_default["prompt_tokens"]


def test_stop_string_ends_before_it() -> None:
    whole = document("--raw", PROMPT, "-n", "20")["text"]
    stop = whole[20:26]
    assert len(stop) == 6
    cut = document("--raw", PROMPT, "-n", "20", "--stop", stop)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"


def test_ctrl_c_keeps_what_was_produced() -> None:
    """A process in mid-answer gets SIGINT: exit 130, text so far, no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_suite.cli", "generate", "--raw", PROMPT, "-n", "100000"],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background job ignores SIGINT, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    first = process.stdout.read(10)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(first + out) > 10 and b"Traceback" not in err
    assert b"route dflash2" in err


HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def test_sigterm_gives_the_cursor_back() -> None:
    """In the middle of the spinner the cursor is hidden, and it stayed so."""
    control, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_suite.cli", "generate", "--raw", PROMPT, "-n", "100000"],
        env={**ENV, "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while HIDE_CURSOR not in shown:
        shown += os.read(control, 4096)
    process.send_signal(signal.SIGTERM)
    try:
        while part := os.read(control, 4096):
            shown += part
    except OSError:  # Linux's way to say that nobody writes there any more
        pass
    os.close(control)
    assert process.wait(60) == 143
    assert shown.rfind(SHOW_CURSOR) > shown.rfind(HIDE_CURSOR) and b"Traceback" not in shown


SWALLOWED = """
raise ImportError("Encountered an error while initializing the extension.") from KeyboardInterrupt()
"""
INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("typer", INTERRUPTED, b""),
        ("typer", SWALLOWED, b""),
        ("mlx_lm", INTERRUPTED, b"interrupted\n"),
        ("mlx_lm", SWALLOWED, b"interrupted\n"),
    ],
)
def test_ctrl_c_while_modules_are_imported(
    tmp_path: Path, module: str, text: str, said: bytes
) -> None:
    """Of the command line's own, and of what a command needs; a compiled module makes an
    ImportError of it."""
    (tmp_path / f"{module}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "dflash_suite.cli", "generate", "--raw", PROMPT, "-n", "1"],
        env={**ENV, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENV['PYTHONPATH']}"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", said)


def test_ctrl_c_before_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dflash_suite.cli.app.app", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli_main()
    assert caught.value.code == 130


def test_the_script_is_the_function_that_expects_it() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"dflash": f"{cli_main.__module__}:{cli_main.__name__}"}


def test_a_reader_that_leaves_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_suite.cli", "generate", "--raw", PROMPT, "-n", "400"],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert b"Traceback" not in err and b"BrokenPipe" not in err


def test_unknown_terminal_encoding_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_suite.cli", "generate", "--raw", "é ü 漢字", "-n", "12"],
        env={**ENV, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["generate.py", "stream.py"])
def test_examples_run(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ROOT / "examples" / script
    assert len(file.read_text().splitlines()) <= 40
    monkeypatch.setenv("DFLASH_EXACT", "off")
    monkeypatch.setattr(sys, "argv", [str(file)])
    runpy.run_path(str(file), run_name="__main__")
    out, err = capsys.readouterr()
    assert "tokens/round" in err or "accept lengths" in out


@pytest.mark.parametrize("how", ["pipe", "dash", "file", "redirected"])
def test_an_empty_prompt_is_an_error_and_never_the_built_in_one(how: str, tmp_path: Path) -> None:
    """`cat missing | dflash generate -q` must not answer something else."""
    empty = tmp_path / "empty"
    empty.touch()
    arguments = {"dash": ["-"], "file": ["-f", str(empty)]}.get(how, [])
    command = [sys.executable, "-m", "dflash_suite.cli", "generate", "-q", "-n", "2", *arguments]
    with empty.open() as stream:
        given = {"stdin": stream} if how == "redirected" else {"input": ""}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    assert done.returncode == 1 and done.stdout == ""
    assert "the prompt is empty" in done.stderr


def test_a_pipe_beside_a_prompt_is_named() -> None:
    command = [sys.executable, "-m", "dflash_suite.cli", "generate", "--raw", "def f(", "-n", "2"]
    for given, said in (("text", True), ("", False)):
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
        assert ("stdin is ignored: PROMPT was given" in done.stderr) == said


def test_settings_as_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_MAX_TOKENS", "7")
    found = json.loads(run("--show-settings", "--json", "--top-k", "3").stdout)
    assert found["schema"] == "dflash.settings/1"
    assert found["settings"]["max_tokens"] == {"value": 7, "source": "DFLASH_MAX_TOKENS"}
    assert found["settings"]["top_k"] == {"value": 3, "source": "option"}
    assert found["settings"]["min_p"] == {"value": 0.0, "source": "default"}


def test_the_footer_says_how_long_prompt_and_answer_were() -> None:
    result = run("--raw", PROMPT, "-n", "9")
    assert re.search(r"prompt \d+ tokens at \d+ tok/s, answer 9 tokens", result.stderr)
