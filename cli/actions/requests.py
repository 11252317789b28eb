"""`dflash generate --requests FILE`: one JSON result a line, in order, whatever a line asks for."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.errors import OptionError, PromptError
from ...core.json_values import checked, is_number, parse_object
from ...core.options import GenerateOptions, LoadOptions, parse_speculation
from ..input.prompt import PromptInput
from ..input.sampling_fields import SAMPLING_FIELDS, sampling_from
from ..text.terminal import print_document

if TYPE_CHECKING:
    from ...core.decode.chat import Chat
    from ...drafters.engine import Engine
    from ...drafters.request import Request

SCHEMA = "dflash.result/2"
Default = TypeVar("Default", int, int | None)
REQUEST_FIELDS = (
    "id", "prompt", "messages", "system", "tools", "reasoning", "max_tokens", "stop", "speculation",
    "block_size", "draft_tokens", "gate", "profile", "exact", "chat", "continue",
)  # fmt: skip


@dataclass(frozen=True)
class Defaults:
    """What a request has where its line is silent.

    asked: --system, --reasoning and --chat or --raw; without --chat a `prompt` is raw text.
    """

    options: GenerateOptions
    speculation: str
    asked: PromptInput = PromptInput()


def serve(engine: Engine, asked: PromptInput, options: GenerateOptions, speculation: str) -> int:
    """Answer every line of FILE (or `-`, stdin) on stdout; returns how many were errors.

    Raises OptionError for a default that no line could use.
    """
    from ...core.decode.chat import parse_reasoning

    defaults = Defaults(options, speculation, asked)
    if asked.reasoning is not None:
        parse_reasoning(asked.reasoning)
    if asked.chat is False and (asked.system is not None or asked.reasoning is not None):
        raise OptionError("--system and --reasoning need a chat template; leave out --raw")
    errors = 0
    for number, line in enumerate(_lines(str(asked.requests)), start=1):
        if not line.strip():
            continue
        result = answer(engine, number, line, defaults)
        errors += "error" in result
        print_document(result, flush=True)
    return errors


def answer(engine: Engine, number: int, line: str | bytes, defaults: Defaults) -> dict[str, Any]:
    """The result object of one line: an answer, or {error: {type, message}}.

    Whatever a line raises is that line's error: a batch of a night does not end at one bad line.
    """
    result: dict[str, Any] = {"schema": SCHEMA, "line": number}
    try:
        fields = _object(line)
        if "id" in fields:
            result["id"] = fields["id"]
        _require_known(fields)
        stated = {name: value for name, value in fields.items() if value is not None}
        request = _request(stated, defaults)
        _require_exactness(stated, asked=engine.promise.asked)
        engine.require_positions(request)
        done = engine.complete(request)
    except Exception as exc:
        name = type(exc).__name__
        return {**result, "error": {"type": name, "message": str(exc) or name}}
    notes = done.route.notes(request.options(engine.prefill_step_size), LoadOptions())
    beyond = engine.position_notes(done.stats.prompt_tokens, len(done.token_ids))
    return {**result, **done.to_dict(), "notes": [*beyond, *notes]}


def _lines(source: str) -> Iterator[bytes]:
    """The lines of a file or of stdin as they stand, without a byte order mark before the first."""
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as stream:
            for number, line in enumerate(stream):
                yield line if number else line.removeprefix(BOM_UTF8)
    except OSError as exc:
        raise PromptError(f"the requests file {source} cannot be read: {exc.strerror}") from exc


def _object(line: str | bytes) -> Mapping[str, Any]:
    """The line's object. JSON has no NaN and no infinity, though Python's reader takes them."""
    value = parse_object(line, "the line", PromptError)
    for name, field in value.items():
        if isinstance(field, float) and not is_number(field):
            raise PromptError(f"the line is not JSON: '{name}' is {field}")
    return value


def _require_known(fields: Mapping[str, Any]) -> None:
    unknown = sorted(set(fields) - {*REQUEST_FIELDS, *SAMPLING_FIELDS})
    if unknown:
        known = ", ".join((*REQUEST_FIELDS, *SAMPLING_FIELDS))
        raise OptionError(f"unknown field {unknown[0]!r}; known: {known}")


def _request(fields: Mapping[str, Any], defaults: Defaults) -> Request:
    """The line's request: its own values over the command's. No value is null."""
    from ...drafters.request import Request

    options = defaults.options
    stop = fields.get("stop", list(options.stop))
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise OptionError(f"stop is {stop!r}, expected a text or a list of texts")
    prompt, chat = _asked(fields, defaults.asked)
    request = Request(
        prompt=prompt,
        messages=None if chat is None else chat.messages,
        tools=None if chat is None else chat.tools,
        reasoning=None if chat is None else chat.reasoning,
        max_tokens=_whole(fields, "max_tokens", options.max_tokens),
        sampling=sampling_from(fields, options.sampling),
        stop=tuple(stop),
        speculation=parse_speculation(_text(fields, "speculation") or defaults.speculation),
        block_size=_whole(fields, "block_size", options.block_size),
        draft_tokens=_whole(fields, "draft_tokens", options.draft_tokens),
        gate=_switch(fields, "gate", options.gate),
        profile=_switch(fields, "profile", options.profile),
        reuse=_switch(fields, "continue", False),
    )
    request.options(options.prefill_step_size)  # values that no run could use, before it begins
    return request


def _asked(
    fields: Mapping[str, Any], defaults: PromptInput
) -> tuple[str | list[int] | None, Chat | None]:
    """(the prompt as it stands, or the chat) of a line."""
    from ...core.decode.chat import Chat, parse_reasoning

    prompt, messages = _prompt(fields), _messages(fields)
    system, reasoning = _text(fields, "system"), _text(fields, "reasoning")
    system = defaults.system if system is None else system
    reasoning = defaults.reasoning if reasoning is None else reasoning
    if reasoning is not None:
        parse_reasoning(reasoning)
    tools = fields.get("tools")
    if tools is not None and not _are_objects(tools):
        raise PromptError(f"tools is {tools!r}, expected a list of objects")
    chat = _switch(fields, "chat", bool(defaults.chat))
    if messages is None and chat and isinstance(prompt, str):
        messages, prompt = [{"role": "user", "content": prompt}], None
    if messages is None:
        given = {"system": system, "reasoning": reasoning, "tools": tools}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise OptionError(
                f"{wrong[0]} needs a chat template, and a prompt is raw text here: give messages, "
                "or --chat"
            )
        return prompt, None
    if defaults.chat is False and not chat:
        raise OptionError("messages need a chat template, and --raw was given; leave it out")
    if system is not None and not any(one.get("role") == "system" for one in messages):
        messages = [{"role": "system", "content": system}, *messages]
    elif "system" in fields:
        raise OptionError("system is given, and messages have a system message too; give one")
    return prompt, Chat(messages, tools, reasoning)


def _whole(fields: Mapping[str, Any], name: str, default: Default) -> int | Default:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} is {value!r}, expected a whole number")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{name} is {value!r}, expected a text")
    return value


def _switch(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value: bool = checked("switch", name, fields.get(name, default), OptionError)
    return value


def _require_exactness(fields: Mapping[str, Any], *, asked: bool) -> None:
    """Whether ids are exact is settled by a check at load, for all lines alike."""
    if _switch(fields, "exact", asked) != asked:
        run = "with --exact, which holds for every line" if asked else "without --exact"
        raise OptionError(f"exact is {str(not asked).lower()}, and this run was started {run}")


def _prompt(fields: Mapping[str, Any]) -> str | list[int] | None:
    value = fields.get("prompt")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(token) is int for token in value):
        return value
    raise PromptError(f"prompt is {value!r}, expected a text or a list of ids")


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    value = fields.get("messages")
    if value is None:
        return None
    if not isinstance(value, list) or not _are_objects(value):
        raise PromptError(f"messages is {value!r}, expected a list of objects with a role")
    return value


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
