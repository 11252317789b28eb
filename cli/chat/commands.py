"""The commands of a chat: lines that begin with a slash. Each gives what is to be said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...core.decode.conversation import Conversation
from ...core.errors import OptionError, RouteUnavailable
from ...core.options import parse_speculation
from ..text.footer import format_accept_profile, format_completion
from .saved import load_chat, save_chat
from .session import ChatSession, ChatState

BUNDLED = "the bundled target"
NO_SYSTEM = "-"
"""Given to /system: no system prompt."""


MOST_DIGITS = 9
"""Of a number of turns."""


@dataclass(frozen=True)
class Command:
    """A command; `run` takes the rest of its line, stripped."""

    usage: str
    help: str
    run: Callable[[ChatSession, str], str]


def run_command(session: ChatSession, line: str) -> str:
    """Run the command of a line, and give what is to be said of it.

    Raises OptionError for one that does not exist, and whatever the command does.
    """
    name, _, argument = line.removeprefix("/").partition(" ")
    if name not in COMMANDS:
        raise OptionError(
            f"/{name} is no command; /help lists them, and a text that begins with a slash is "
            "sent with two"
        )
    return COMMANDS[name].run(session, argument.strip())


def is_exit(line: str) -> bool:
    """Whether a line leaves the chat."""
    return line.strip() in ("/exit", "/quit")


def _system(session: ChatSession, text: str) -> str:
    conversation = session.state.conversation
    if not text:
        return "no system prompt" if conversation.system is None else conversation.system
    system = None if text == NO_SYSTEM else text
    session.change(replace(session.state, conversation=replace(conversation, system=system)))
    said = "no system prompt from here on" if system is None else "that is the system prompt now"
    return f"{said}; {describe(session)}"


def _reset(session: ChatSession, argument: str) -> str:
    _require_none("/reset", argument)
    dropped = len(session.state.conversation.exchanges)
    system = session.state.conversation.system
    session.change(replace(session.state, conversation=Conversation(system)))
    kept = "" if system is None else "; the system prompt stays"
    return f"forgotten: {_turns(dropped)}{kept}"


def _drop(session: ChatSession, argument: str) -> str:
    conversation = session.state.conversation
    most = len(conversation.exchanges)
    is_number = argument.isascii() and argument.isdecimal() and len(argument) <= MOST_DIGITS
    count = int(argument) if is_number else 0 if argument else 1
    if not 1 <= count <= most:
        raise OptionError(
            f"/drop {argument[:MOST_DIGITS]}: there are {_turns(most)}; give how many of the "
            "oldest to leave out"
        )
    session.change(replace(session.state, conversation=conversation.without_oldest(count)))
    return f"left out: {_turns(count)}; {describe(session)}"


def _stats(session: ChatSession, argument: str) -> str:
    _require_none("/stats", argument)
    if session.last is None:
        return f"no answer yet; {describe(session)}"
    figures = [format_completion(session.last), format_accept_profile(session.last.stats)]
    return "\n".join([*figures, describe(session)])


def _speculation(session: ChatSession, argument: str) -> str:
    if argument:
        session.change(replace(session.state, speculation=parse_speculation(argument)))
    route = session.engine.route(session.state.speculation)
    return f"speculation {session.state.speculation}: route {route.route}, {route.reason}"


def _save(session: ChatSession, argument: str) -> str:
    return f"saved to {save_chat(session, argument)}"


def _load(session: ChatSession, argument: str) -> str:
    state, model = load_chat(argument, session.state)
    notes = []
    if model != session.model:
        notes.append(
            f"it was saved with {model or BUNDLED}, and this is {session.model or BUNDLED}"
        )
    notes += _change_or_keep_speculation(session, state)
    session.last = None
    return "\n".join([f"loaded: {describe(session)}", *notes])


def _change_or_keep_speculation(session: ChatSession, state: ChatState) -> list[str]:
    """The chat of another machine is taken though its drafter is not here."""
    try:
        session.change(state)
    except RouteUnavailable as exc:
        kept = session.state.speculation
        session.change(replace(state, speculation=kept))
        return [f"{exc}; speculation stays {kept}"]
    return []


def _help(session: ChatSession, argument: str) -> str:
    _require_none("/help", argument)
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join([*lines, *KEYS])


def describe(session: ChatSession) -> str:
    """How long the conversation is, and how much of the window that takes."""
    tokens, most = session.count_tokens(), session.positions
    window = "" if most is None else f" of {most:,}"
    return f"{_turns(len(session.state.conversation.exchanges))}, {tokens:,}{window} tokens"


def _turns(count: int) -> str:
    return f"{count} turn{'s' * (count != 1)}"


def _require_none(name: str, argument: str) -> None:
    if argument:
        raise OptionError(f"{name} takes nothing behind it, got '{argument}'")


COMMANDS = {
    "help": Command("/help", "this list", _help),
    "system": Command("/system [TEXT]", "show or set the system prompt; - for none", _system),
    "reset": Command("/reset", "forget the conversation; the system prompt stays", _reset),
    "drop": Command("/drop [N]", "leave out the oldest turn, or N of them", _drop),
    "stats": Command("/stats", "figures of the last answer, and how full the window is", _stats),
    "speculation": Command(
        "/speculation [MODE]", "show or set auto, dflash, mtp or none", _speculation
    ),
    "save": Command("/save FILE", "write messages, system prompt and options as JSON", _save),
    "load": Command("/load FILE", "go on from such a file", _load),
    "exit": Command("/exit", "leave; Ctrl-D does too", lambda session, argument: ""),
}
KEYS = (
    "Enter sends; Alt-Enter, or a backslash at the end of a line, begins another line.",
    "Ctrl-C ends an answer, and what was written of it is kept.",
)
