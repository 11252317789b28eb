"""A conversation from its first line to its last: turns answered, commands run, errors said."""

from __future__ import annotations

from contextlib import closing

from ...core.errors import DflashError, PromptTooLong
from ...drafters.split_answer import SplitAnswer
from ..interrupt import stopping
from ..text.footer import print_error, print_note
from .commands import is_exit, run_command
from .lines import Lines
from .screen import Screen
from .session import ChatSession, window_note


def converse(session: ChatSession, lines: Lines, screen: Screen, *, quiet: bool) -> int:
    """Answer until the end of the input; returns how many lines failed.

    What a line raises is said, and the chat goes on with what it had. Ctrl-C ends an answer on a
    terminal; in a pipe it is raised, once what there is of the answer has been written.
    """
    failed = 0
    while True:
        try:
            line = lines.read()
            if line is None or is_exit(line):
                return failed
            if line.strip():
                _take(session, line, Talk(screen, lines.interactive, quiet))
        except DflashError as exc:
            failed += 1
            print_error(str(exc))
        except MemoryError:
            failed += 1
            print_error("there is not enough memory for this answer; /drop turns, or /reset")
        except KeyboardInterrupt:
            if not lines.interactive:
                raise
            print_note("Ctrl-D or /exit leaves")


class Talk:
    """Where a line's answer and what is said of it go."""

    def __init__(self, screen: Screen, interactive: bool, quiet: bool) -> None:
        self.screen = screen
        self.interactive = interactive
        self._quiet = quiet

    def note(self, text: str) -> None:
        """Say something that is no answer."""
        if not self._quiet:
            print_note(text)


def _take(session: ChatSession, line: str, talk: Talk) -> None:
    if line.startswith("/") and not line.startswith("//"):
        print_note(run_command(session, line))
        return
    question = line[1:] if line.startswith("//") else line
    try:
        turn = session.begin(question)
    except PromptTooLong:
        talk.note(window_note(session, question))
        raise
    for note in turn.answer.notes:
        talk.note(note)
    try:
        is_whole = _answer(turn, talk)
    except KeyboardInterrupt:
        _cut(turn, talk)
        if not talk.interactive:
            raise
        is_whole = False
    except BaseException:
        talk.screen.break_off()
        raise
    _keep(session, question, turn, talk)
    if not is_whole:
        talk.note("the answer was ended here")
    elif turn.reason == "length":
        talk.note(_why_it_ended(session, turn))


def _answer(turn: SplitAnswer, talk: Talk) -> bool:
    """Show a turn to its end; False where Ctrl-C ended it between two rounds."""
    with stopping(talk.interactive) as stop, closing(iter(turn)) as events:
        for event in events:
            talk.screen.show(event)
            if stop.is_set():
                break
    if stop.is_set() and turn.reason is None:
        _cut(turn, talk)
        return False
    talk.screen.end()
    return True


def _cut(turn: SplitAnswer, talk: Talk) -> None:
    for piece in turn.cut():
        talk.screen.show(piece)
    talk.screen.end()


def _keep(session: ChatSession, question: str, turn: SplitAnswer, talk: Talk) -> None:
    if turn.text or turn.reasoning or turn.reason != "cancelled":
        session.keep(question, turn)
    else:
        talk.note("nothing was answered, so the question is forgotten too")


def _why_it_ended(session: ChatSession, turn: SplitAnswer) -> str:
    if turn.answer.notes:
        return window_note(session)
    return f"the answer was cut at {session.state.options.max_tokens} tokens (--max-tokens)"
