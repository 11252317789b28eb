"""`dflash chat` with the bundled pair: a pipe, a terminal, Ctrl-C in an answer, Ctrl-D."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dflash_suite.cli.app import app
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.request import Request
from tests.kit.places import ROOT
from tests.kit.tiny import save_checkpoint

ENV = {**os.environ, "PYTHONPATH": str(ROOT / ".src"), "NO_COLOR": "1", "COLUMNS": "200"}
ENV |= {"TERM": "xterm", "DFLASH_EXACT": "off"}

EOS_IDS = json.loads((BUNDLED / "target" / "generation_config.json").read_text())["eos_token_id"]
ENDLESS = [part for token in EOS_IDS for part in ("--logit-bias", f"{token}:-100")]
"""Options under which no answer ends by itself."""


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def run(*args: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, ["chat", "--no-exact", "--no-gate", *args], input=stdin)


def test_a_pipe_gets_the_answers_alone(bundled_target: LoadedTarget, tmp_path: Path) -> None:
    """As the engine answers the same messages; the second turn goes on from rows of the first."""
    engine = Engine(bundled_target.target, bundled_target.tokenizer)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Python."}]
    wanted = ""
    for question in ("Write a class for a stack.", "More."):
        messages.append({"role": "user", "content": question})
        text = engine.complete(Request(messages=messages, max_tokens=24)).text
        messages.append({"role": "assistant", "content": text})
        wanted += text + ("" if text.endswith("\n") else "\n")
    file = tmp_path / "chat.json"
    lines = ["Write a class for a stack.", "/speculation mtp", "More.", "/stats", f"/save {file}"]
    done = run("-n", "24", "--system", "Python.", stdin="\n".join(lines))
    assert (done.exit_code, done.stdout) == (0, wanted)
    assert "speculation mtp: route mtp" in done.stderr
    used = re.search(r"prompt (\d+) tokens \((\d+) used again\)", done.stderr)
    assert used is not None and int(used[2]) > 0.6 * int(used[1])
    found = json.loads(file.read_text())
    assert [{"role": "system", "content": found["system"]}, *found["messages"]] == messages
    again = run("--quiet", "-n", "2", stdin=f"/load {file}\n/drop 1\n/stats\n")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "loaded: 2 turns" in again.stderr and "left out: 1 turn; 1 turn" in again.stderr


def test_a_line_that_fails_is_exit_code_1_and_the_others_are_answered() -> None:
    done = run("-n", "2", "-q", "-s", "none", stdin=b"/nothing\n\xff\nx = 1\n")
    assert done.exit_code == 1 and len(done.stdout.strip()) > 0
    assert done.stderr.count("error: ") == 2 and "line 2 is not UTF-8" in done.stderr


def test_a_window_that_is_full(tmp_path: Path) -> None:
    done = run("-n", "2000", "-s", "none", stdin="word " * 1200 + "\n")
    assert done.exit_code == 1 and done.stdout == ""
    assert "the window of 1,024 tokens is full" in done.stderr
    done = run("-n", "2000", "-s", "none", "--stop", "\n", stdin="x")
    assert done.exit_code == 0 and re.search(r"max_tokens is 1,01\d in place of 2,000", done.stderr)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--reasoning", "much"], 2, "invalid 'reasoning' value"),
        (["--reasoning", "on"], 1, "cannot be told to this model"),
        (["--system", "word " * 1200], 1, "the target has 1,024 positions"),
        (["--max-tokens", "0"], 2, "--max-tokens"),
        (["--temperature", "-1"], 2, "--temperature must be 0"),
        (["--draft-model", "x"], 2, "is an option of mlx-lm"),
        (["-m", "no/where/at/all"], 1, "no/where/at/all"),
    ],
)
def test_options_that_no_chat_could_use(args: list[str], code: int, words: str) -> None:
    done = run("-s", "none", *args, stdin="x\n")
    assert done.exit_code == code and words in done.stderr and done.stdout == ""


def test_a_tokenizer_without_a_template(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "dense")
    done = run("-m", str(tmp_path), "-s", "none", stdin="x\n")
    assert done.exit_code == 1 and "no chat template, so there is no chat" in done.stderr


def test_help_imports_no_line_editor() -> None:
    code = (
        "import sys; from dflash_suite.cli.app import app\n"
        "try: app(['chat', '--help'], prog_name='dflash')\n"
        "except SystemExit: pass\n"
        "print(sorted({'prompt_toolkit', 'mlx', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV)
    assert done.stderr.strip() == "[]" and "--hide-reasoning" in done.stdout


class Terminal:
    """A process at a terminal of its own, which Ctrl-C reaches as a signal."""

    def __init__(self, *args: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dflash_suite.cli", "chat", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=ENV,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, pattern: str, sec: float = 60) -> str:
        """What came up to a pattern, which is taken away."""
        until = time.monotonic() + sec
        while (found := re.search(pattern, self.seen)) is None:
            ready = select.select([self.ours], [], [], max(0, until - time.monotonic()))[0]
            assert ready, f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.ours, 4096).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                raise AssertionError(f"the end, and no {pattern!r} in {self.seen!r}") from None
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())


def test_at_a_terminal_ctrl_c_ends_an_answer_and_ctrl_d_the_chat() -> None:
    terminal = Terminal("-n", "900", "-s", "none", *ENDLESS)
    try:
        said = terminal.wait_for(">\x08")
        assert "route none" in said and "Ctrl-D to leave" in said
        terminal.type("write a long\x1b\rclass\r")
        terminal.wait_for(r"2004l(?s:.){40}")  # the editor is left, and an answer comes
        terminal.type("\x03")
        terminal.wait_for("the answer was ended here")
        terminal.wait_for(">\x08")
        terminal.type("/stats\r")
        assert "1 turn, " in terminal.wait_for("of 1,024 tokens")
        terminal.wait_for(">\x08")
        assert terminal.process.poll() is None
        terminal.type("\x04")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.ours)


def test_ctrl_c_in_a_pipe() -> None:
    """What there is of the answer is kept; exit code 130."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_suite.cli", "chat", "-q", "-n", "900", *ENDLESS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV,
        # A shell's background job ignores SIGINT, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"write a long class\n")
        process.stdin.flush()
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130 and (first + out).endswith(b"\n")
        assert b"interrupted" in err and b"Traceback" not in err
    finally:
        process.kill()
        process.wait()
