"""A chat by its session, its commands and its files, over answers that are written beforehand."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dflash_suite.cli.chat.commands import COMMANDS, run_command
from dflash_suite.cli.chat.converse import converse
from dflash_suite.cli.chat.lines import EditedLines, PipedLines
from dflash_suite.cli.chat.saved import document, load_chat
from dflash_suite.cli.chat.screen import Screen
from dflash_suite.cli.chat.session import ChatSession, ChatState
from dflash_suite.cli.text.progress import Progress
from dflash_suite.core.decode.conversation import Conversation, Exchange
from dflash_suite.core.errors import DflashError, OptionError, PromptError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.drafters.engine import Engine
from tests.kit.scripted_engine import ScriptedEngine, scripted_engine

THOUGHT = "<think>\nhm\n</think>\n\nYes."


class Typed:
    """Lines of somebody at a terminal, or of a pipe."""

    def __init__(self, lines: Sequence[str | BaseException], interactive: bool = True) -> None:
        self.interactive = interactive
        self.left = list(lines)

    def read(self) -> str | None:
        if not self.left:
            return None
        line = self.left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def session(directory: Path, *texts: str, max_tokens: int = 200, **more: Any) -> ChatSession:
    engine = scripted_engine(directory, texts, **more)
    state = ChatState(Conversation(), GenerateOptions(max_tokens), "auto")
    return ChatSession(cast(Engine, engine), None, state)


def talk(
    chat: ChatSession, *lines: str | BaseException, interactive: bool = True, hides: bool = False
) -> int:
    """How many of the lines failed."""
    screen = Screen(Progress(enabled=False), hides_reasoning=hides)
    return converse(chat, Typed(lines, interactive), screen, quiet=False)


def asked(chat: ChatSession) -> list[list[dict[str, Any]]]:
    engine = cast(ScriptedEngine, chat.engine)
    return [[dict(one) for one in request.messages or ()] for request in engine.requests]


def test_answers_and_what_the_model_is_told_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = session(tmp_path, THOUGHT, "two\nlines\n", "")
    assert talk(chat, "a?", "", "  ", "b?", "//c?") == 0
    assert capsys.readouterr().out == "Yes.\ntwo\nlines\n\n", "an empty answer is an empty line"
    assert asked(chat)[2] == [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"},
        {"role": "user", "content": "b?"},
        {"role": "assistant", "content": "two\nlines\n"},
        {"role": "user", "content": "/c?"},
    ]


def test_thoughts_stay_out_where_the_template_does_not_read_them(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    chat = session(tmp_path, THOUGHT, "x", template=template)
    talk(chat, "a?", "b?")
    assert asked(chat)[1][1] == {"role": "assistant", "content": "Yes."}
    assert chat.state.conversation.exchanges[0].reasoning == "hm", "but are kept"


@pytest.mark.parametrize(
    ("hides", "shown"),
    [(False, "\x1b[2mhm \\x1b[22m\x1b[22m\n\nYes.\n"), (True, "Yes.\n")],
)
def test_thoughts_are_dimmed_on_a_terminal_and_controls_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hides: bool, shown: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    text = "<think>\nhm \x1b[22m\n</think>\n\nYes."
    talk(session(tmp_path, text), "a?", hides=hides)
    assert stream.getvalue() == shown


def test_ctrl_c_ends_the_answer_at_rest_and_not_the_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(number: int) -> None:
        if number == 1 and len(engine.requests) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    chat = session(tmp_path, "0123456789", "second", during=interrupt)
    engine = cast(ScriptedEngine, chat.engine)
    before = signal.getsignal(signal.SIGINT)
    assert talk(chat, "a?", KeyboardInterrupt(), "b?") == 0
    out, err = capsys.readouterr()
    assert out == "012345\nsecond\n" and signal.getsignal(signal.SIGINT) is before
    assert "the answer was ended here" in err and "Ctrl-D or /exit leaves" in err
    assert chat.state.conversation.exchanges[0] == Exchange("a?", "012345")


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(number: int) -> None:
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    chat = session(tmp_path, "0123456789", during=interrupt)
    assert talk(chat, "a?", "/stats extra") == 1
    assert capsys.readouterr().out == "012\n"
    assert chat.state.conversation.exchanges == (Exchange("a?", "012"),)


def test_ctrl_c_before_the_first_token_forgets_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    chat = session(tmp_path, "0123456789", during=interrupt)
    assert talk(chat, "a?") == 0
    assert "the question is forgotten too" in capsys.readouterr().err
    assert chat.state.conversation == Conversation()


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT is heard, which a shell's background job ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_in_a_pipe_ends_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    chat = session(tmp_path, "0123456789", during=interrupt)
    with pytest.raises(KeyboardInterrupt):
        talk(chat, "a?", "b?", interactive=False)
    assert capsys.readouterr().out == "012345\n"


def test_an_answer_that_fails_ends_its_line_and_the_chat_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(number: int) -> None:
        if number == 1 and len(engine.requests) == 1:
            raise DflashError("no numbers")

    chat = session(tmp_path, "0123456789", "second", during=fail)
    engine = cast(ScriptedEngine, chat.engine)
    assert talk(chat, "a?", PromptError("line 2 is no text"), "b?") == 2
    out, err = capsys.readouterr()
    assert out == "012\nsecond\n"
    assert "error: no numbers" in err and "error: line 2 is no text" in err
    assert [one.question for one in chat.state.conversation.exchanges] == ["b?"]


def test_a_full_window_is_said_and_the_oldest_turns_can_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[user]a?\\n[assistant] is 20 tokens, and so is a turn before, but for its answer's text and a
    newline."""
    chat = session(tmp_path, "1" * 30, "2" * 30, "3" * 30, "4" * 9, max_tokens=30, positions=100)
    assert talk(chat, "a?", "b?", "c?") == 1
    out, err = capsys.readouterr()
    assert out == "1" * 30 + "\n" + "2" * 29 + "\n"
    assert "max_tokens is 29 in place of 30" in err
    assert err.count("the window of 100 tokens is full: /drop 1 leaves out the oldest turn") == 2
    assert "prompt is too long" in err
    assert len(chat.state.conversation.exchanges) == 2
    assert talk(chat, "/drop 1", "c?", "/reset", "x" * 90) == 1
    out, err = capsys.readouterr()
    assert "left out: 1 turn; 1 turn, 69 of 100 tokens" in err and out == "3" * 30 + "\n"
    assert "forgotten: 2 turns" in err and "a shorter question" in err


def test_an_answer_cut_by_max_tokens_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(session(tmp_path, "123456", max_tokens=4), "a?")
    out, err = capsys.readouterr()
    assert out == "1234\n" and "the answer was cut at 4 tokens (--max-tokens)" in err


def test_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = session(tmp_path, "one", "two")
    said = {line: run_command(chat, line) for line in ("/help", "/system", "/stats", "/reset")}
    assert all(command.usage in said["/help"] for command in COMMANDS.values())
    assert said["/system"] == "no system prompt" and said["/stats"].startswith("no answer yet")
    assert said["/reset"] == "forgotten: 0 turns"
    assert "that is the system prompt now" in run_command(chat, "/system  Be terse.\nAlways. ")
    assert run_command(chat, "/system") == "Be terse.\nAlways."
    assert "none is here" in run_command(chat, "/speculation")
    assert "route none, speculation is off" in run_command(chat, "/speculation off")
    assert talk(chat, "a?", "/exit", "b?") == 0 and capsys.readouterr().out == "one\n"
    assert "prompt 46 tokens" in run_command(chat, "/stats")
    assert asked(chat)[0][0] == {"role": "system", "content": "Be terse.\nAlways."}
    assert cast(ScriptedEngine, chat.engine).requests[0].speculation == "none"
    assert run_command(chat, "/reset") == "forgotten: 1 turn; the system prompt stays"
    assert "no system prompt from here on" in run_command(chat, "/system -")
    assert chat.state.conversation == Conversation()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nothing", "/nothing is no command; /help lists them"),
        ("/", "/ is no command"),
        ("/usr/bin is a path", "/usr/bin is no command"),
        ("/drop", "there are 0 turns"),
        ("/drop 0", "there are 0 turns"),
        ("/drop -1", "/drop -1: there are"),
        ("/drop x", "/drop x: there are"),
        ("/drop " + "9" * 5000, "there are 0 turns"),
        ("/reset now", "/reset takes nothing behind it"),
        ("/stats now", "/stats takes nothing behind it"),
        ("/help now", "/help takes nothing behind it"),
        ("/speculation fast", "invalid 'speculation' value 'fast'"),
        ("/speculation mtp", "--speculation mtp cannot run: none is here"),
        ("/system " + "x" * 100, "the system prompt takes 128 tokens"),
        ("/system \udcff", "system message is not UTF-8"),
        ("/save", "give the name of a file"),
        ("/load", "give the name of a file"),
        ("/load nowhere.json", "No such file"),
        ("/save \0", "cannot be written"),
        ("/load \0", "cannot be read"),
    ],
)
def test_a_command_that_cannot_be_run_changes_nothing(
    tmp_path: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = session(tmp_path, positions=100)
    before = chat.state
    assert talk(chat, line) == 1
    out, err = capsys.readouterr()
    assert words in err and out == "" and chat.state is before


FULL = ChatState(
    Conversation("terse", (Exchange("a?", "b", "hm"), Exchange("c?", "d"))),
    GenerateOptions(
        77,
        4,
        2,
        False,
        stop=("END",),
        sampling=SamplingOptions(0.5, seed=3, logit_bias=((5, -1.0),)),
    ),
    "none",
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    chat = session(tmp_path, positions=500)
    chat.change(FULL)
    file = tmp_path / "deep er" / "chat.json"
    assert run_command(chat, f"/save {file}") == f"saved to {file}"
    found = json.loads(file.read_text())
    assert found["messages"][1] == {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    assert (found["schema"], found["system"], found["model"]) == ("dflash.chat/1", "terse", None)
    other = session(tmp_path, positions=500)
    assert run_command(other, f"/load {file}") == "loaded: 2 turns, 81 of 500 tokens"
    assert other.state == replace(FULL, options=replace(FULL.options, prefill_step_size=2048))
    other.model = "elsewhere"
    assert "saved with the bundled target, and this is elsewhere" in run_command(
        other, f"/load {file}"
    )
    assert run_command(other, f"/save {file}").startswith("saved"), "a chat may be replaced"
    assert list(file.parent.iterdir()) == [file], "nothing is left beside it"


def test_a_drafter_that_is_not_here_does_not_keep_a_chat_from_being_loaded(tmp_path: Path) -> None:
    chat = session(tmp_path)
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({**document(chat), "options": {"speculation": "mtp"}}))
    assert "speculation stays auto" in run_command(chat, f"/load {file}")
    assert chat.state.speculation == "auto"


def test_a_file_of_someone_else_stays(tmp_path: Path) -> None:
    chat = session(tmp_path)
    for name, text in (("text", b"precious"), ("json", b'{"schema": "other"}'), ("list", b"[]")):
        file = tmp_path / name
        file.write_bytes(text)
        with pytest.raises(DflashError, match="holds no chat; take another name"):
            run_command(chat, f"/save {file}")
        assert file.read_bytes() == text
    (tmp_path / "folder").mkdir()
    with pytest.raises(DflashError, match="folder"):
        run_command(chat, f"/save {tmp_path / 'folder'}")


def changed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda found: {**found, **changes}


def optioned(**options: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda found: {**found, "options": {**found["options"], **options}}


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any] | bytes, str]] = {
    "no JSON": (b"{", "is not JSON"),
    "no text": (b"\xff\xfe", "not UTF-8"),
    "nothing": (b"", "is not JSON"),
    "deep": (b"[" * 100_000, "is not JSON"),
    "a list": (b"[]", "holds a list, expected a JSON object"),
    "another schema": (changed(schema="x"), "schema is 'x', expected 'dflash.chat/1'"),
    "no schema": (b"{}", "schema is None"),
    "an unknown field": (changed(more=1), "the chat has the field 'more'"),
    "a model that is no text": (changed(model=3), "model is 3"),
    "a system prompt that is no text": (changed(system=["x"]), "system is ['x']"),
    "a system prompt that is too long": (changed(system="x" * 600), "the target has 500 positions"),
    "no messages": (changed(messages=None), "messages is None"),
    "another role": (
        changed(messages=[{"role": "tool", "content": "x"}]), "message 1 has the role"),
    "an answer to nothing": (
        changed(messages=[{"role": "assistant", "content": "x"}]), "an answer to nothing"),
    "half a surrogate": (
        changed(messages=[{"role": "user", "content": "\ud800"}]), "message 1 is not UTF-8"),
    "options that are none": (changed(options=[]), "options is [], expected an object"),
    "an unknown option": (optioned(speed=1), "options has the field 'speed'"),
    "max_tokens": (optioned(max_tokens=0), "max_tokens must be at least 1"),
    "max_tokens that is no number": (optioned(max_tokens="9"), "max_tokens is '9'"),
    "max_tokens that is null": (optioned(max_tokens=None), "max_tokens is None"),
    "stop": (optioned(stop=[""]), "empty stop string"),
    "gate": (optioned(gate=1), "gate is 1"),
    "block_size": (optioned(block_size=1), "block_size 1 leaves no room"),
    "speculation": (optioned(speculation="fast"), "invalid 'speculation' value"),
    "reasoning": (optioned(reasoning="much"), "invalid 'reasoning' value 'much'"),
    "reasoning that the template has not": (optioned(reasoning="on"), "cannot be told to this"),
    "sampling": (optioned(sampling={"temperature": -1}), "temperature must be 0 or a positive"),
    "an unknown way to draw": (optioned(sampling={"heat": 1}), "sampling has the field 'heat'"),
    "a temperature that is no number": (b'{"NaN": NaN}', "schema"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_and_the_chat_goes_on(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made, words = BAD[case]
    chat = session(tmp_path, "still here", positions=500)
    chat.change(FULL)
    file = tmp_path / "bad.json"
    file.write_bytes(made if isinstance(made, bytes) else json.dumps(made(document(chat))).encode())
    before = chat.state
    assert talk(chat, f"/load {file}", "e?") == 1
    out, err = capsys.readouterr()
    assert words in err and out == "still here\n"
    assert chat.state.conversation.exchanges[:-1] == before.conversation.exchanges
    assert replace(chat.state, conversation=before.conversation) == before


def test_what_a_file_leaves_out_stays(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(b'\xef\xbb\xbf{"schema": "dflash.chat/1", "messages": []}')
    state, model = load_chat(str(file), FULL)
    assert state == replace(FULL, conversation=Conversation()) and model is None
    file.write_text('{"schema": "dflash.chat/1", "messages": [], "options": {"sampling": '
                    '{"seed": null, "temperature": null}, "block_size": null}}')  # fmt: skip
    state, _ = load_chat(str(file), FULL)
    assert state.options.sampling == replace(FULL.options.sampling, seed=None)
    assert state.options.block_size is None and state.options.draft_tokens == 2


@pytest.mark.parametrize("place", ["pipe", "/dev/null", "."])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    if place == "pipe":
        os.mkfifo(path)
    with pytest.raises(PromptError, match="cannot be read"):
        load_chat(str(path), FULL)


def test_a_system_prompt_that_the_template_refuses(tmp_path: Path) -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    )
    chat = session(tmp_path, template=template + "{{ messages[0].content }}")
    with pytest.raises(PromptError, match="no system role"):
        run_command(chat, "/system x")
    assert chat.state.conversation.system is None


def test_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    data = "\ufeffone \r\n\ntwo\\\n".encode() + b"\xff\nlast"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    lines = PipedLines()
    assert [lines.read() for _ in range(3)] == ["one ", "", "two\\"]
    with pytest.raises(PromptError, match="line 4 is not UTF-8"):
        lines.read()
    assert [lines.read(), lines.read()] == ["last", None]


def test_lines_of_a_terminal() -> None:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        lines = EditedLines()
        lines._session.app.output = DummyOutput()
        typed = [
            ("hello\r", "hello"),
            ("a\x1b\rb\r", "a\nb"),  # Alt-Enter
            ("a\\\rb\r", "a\nb"),  # a backslash in front of Enter
            ("\x1b[200~x\ny\x1b[201~\r", "x\ny"),  # pasted
            ("\x1b[A\x1b[A\r", "x\ny"),  # up, over both lines
            ("lo\x1b[D\x7fhel\r", "helo"),
        ]
        for keystrokes, wanted in typed:
            keys.send_text(keystrokes)
            assert lines.read() == wanted
        keys.send_text("gone\x03")
        with pytest.raises(KeyboardInterrupt):
            lines.read()
        keys.send_text("\x04")
        assert lines.read() is None


def test_options_are_checked_when_a_chat_begins(tmp_path: Path) -> None:
    chat = session(tmp_path)
    with pytest.raises(OptionError, match="invalid 'reasoning'"):
        chat.change(replace(chat.state, reasoning="much"))
