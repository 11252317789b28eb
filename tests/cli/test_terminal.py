"""What comes from outside never acts on a terminal, and leaves a pipe as it came."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.cli.text.progress import Progress
from dflash_suite.cli.text.terminal import AnswerWriter, escaped, print_document, print_text

NASTY = "\x1b]0;title\x07\x1b[31mred\x9b2J\x7f\x00 a\tb\r\nc\rd"
SHOWN = "\\x1b]0;title\\x07\\x1b[31mred\\x9b2J\\x7f\\x00 a\tb\nc\\x0dd"
MARKUP = "[red]x[/] [/] :smile: [link=file:///x]"


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_controls_are_spelled_out() -> None:
    assert escaped(NASTY) == SHOWN
    assert escaped("plain é 漢字 🎉\n\tx") == "plain é 漢字 🎉\n\tx"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_answer_in_pieces_is_the_whole(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is cut, a carriage return from its newline too."""
    chance = random.Random(3)
    for _ in range(200):
        stream = Terminal() if is_terminal else io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        text = "".join(chance.choice(["\r", "\n", "\x1b", "a", "é"]) for _ in range(12))
        writer, at = AnswerWriter(), 0
        while at < len(text):
            step = chance.randint(1, 4)
            writer.write(text[at : at + step])
            at += step
        writer.finish()
        assert stream.getvalue() == (escaped(text) if is_terminal else text)


def test_lines_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((Terminal(), SHOWN), (io.StringIO(), NASTY)):
        monkeypatch.setattr(sys, "stdout", stream)
        print_text(NASTY)
        assert stream.getvalue() == expected + "\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_document_is_json_in_every_encoding(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="strict"))
    document = {"text": "é 🎉 \udc80 \x1b", "figure": float("nan"), "more": [float("inf"), 1.5]}
    print_document(document, flush=True)
    found = json.loads(raw.getvalue().decode(encoding))
    assert found == {**document, "figure": None, "more": [None, 1.5]}
    assert ("🎉" in raw.getvalue().decode(encoding)) == (encoding == "utf-8")


@pytest.mark.parametrize("command", ["generate", "doctor", "bench", "quantize"])
def test_markup_in_a_path_is_shown_as_it_is(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    place = str(tmp_path / MARKUP.replace("/", "_"))
    given = {"doctor": [place], "quantize": [place]}.get(command, ["-m", place])
    done = CliRunner().invoke(app, [command, *given])
    assert done.exit_code == 1 and not isinstance(done.exception, KeyError)
    assert place in done.output


def test_progress_takes_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(enabled=True) as progress:
        progress.say(f"loading {MARKUP} \x1b[2J")
        progress.bytes(f"packing {MARKUP} \x1b[2J", 1, 2)
        progress.report(notes=True).note(f"note {MARKUP} \x1b[2J")
    shown = stream.getvalue()
    assert "[red]x[/]" in shown and ":smile:" in shown and "\\x1b[2J" in shown


def test_on_a_real_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    """A directory whose name has an escape sequence, in an error on stderr."""
    command = [sys.executable, "-m", "dflash_suite.cli", "generate", "-m", f"{tmp_path}/a\x1b[2Jb"]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "300"}
    piped = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert b"a\x1b[2Jb" in piped.stderr and piped.returncode == 1
    ours, theirs = pty.openpty()
    done = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
    assert done.wait() == 1
    assert b"a\\x1b[2Jb" in seen and b"a\x1b[2J" not in seen
