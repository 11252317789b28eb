"""A conversation: on a terminal line by line, in a pipe a line at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from ...core.errors import PromptError
from ...core.options import GenerateOptions, LoadOptions
from ..text.footer import print_note
from ..text.progress import Progress
from .loading import load_engine

if TYPE_CHECKING:
    from ..chat.session import ChatSession


@dataclass(frozen=True)
class ChatCall:
    """One call of `dflash chat`.

    system, reasoning: as the options, None where they are not given. hides_reasoning: thoughts are
    not shown on a terminal either; quiet: nothing on stderr but errors and what commands say.
    """

    loading: LoadOptions
    options: GenerateOptions
    system: str | None = None
    reasoning: str | None = None
    hides_reasoning: bool = False
    quiet: bool = False


def run_chat(call: ChatCall) -> None:
    """Load, and converse to the end. Raises typer.Exit with 1 where a line of a pipe failed."""
    progress = Progress(enabled=not call.quiet)
    engine = load_engine(call.loading, call.options, progress, quiet=call.quiet)
    from ...core.decode.conversation import Conversation
    from ..chat.converse import converse
    from ..chat.lines import open_lines
    from ..chat.screen import Screen
    from ..chat.session import ChatSession, ChatState

    if not engine.tokenizer.has_chat_template:
        raise PromptError(
            "this tokenizer has no chat template, so there is no chat; dflash generate --raw "
            "continues a text"
        )
    state = ChatState(
        Conversation(call.system), call.options, call.loading.speculation, call.reasoning
    )
    session = ChatSession(engine, call.loading.model, state)
    session.change(state)
    lines = open_lines()
    if not call.quiet:
        for note in _notes(session, call, interactive=lines.interactive):
            print_note(note)
    screen = Screen(progress, hides_reasoning=call.hides_reasoning)
    failed = converse(session, lines, screen, quiet=call.quiet)
    if failed and not lines.interactive:
        raise typer.Exit(1)


def _notes(session: ChatSession, call: ChatCall, *, interactive: bool) -> list[str]:
    """What is to be said before the first turn."""
    engine = session.engine
    route = engine.route(call.loading.speculation)
    notes = route.notes(call.options, call.loading)
    if not engine.target.can_share_rows:
        notes.append("on this device each turn feeds the whole conversation again, as --exact asks")
    if interactive:
        model = session.model or "the bundled target"
        notes.append(f"{model}, route {route.route}: {route.reason}\n/help, and Ctrl-D to leave")
    return notes
