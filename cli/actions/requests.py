"""`dflash generate --requests FILE`: one JSON result a line, in order, whatever a line asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import DflashError, OptionError, PromptError
from ...core.json_values import Kind, checked, is_number, is_whole, parse_object, wrong_value
from ...core.options import GenerateOptions, parse_speculation
from ...core.sampling_options import SamplingOptions
from ..text.terminal import print_document

if TYPE_CHECKING:
    from ...drafters.engine import Engine
    from ...drafters.request import Request

SCHEMA = "dflash.result/2"
SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingOptions))
WHOLE_FIELDS = ("top_k", "seed", "penalty_window")
MOST_ID_DIGITS = 18
REQUEST_FIELDS = (
    "id", "prompt", "messages", "max_tokens", "stop", "speculation", "block_size", "draft_tokens",
    "continue",
)  # fmt: skip


def serve(engine: Engine, source: str, defaults: GenerateOptions, speculation: str) -> int:
    """Answer every line of FILE (or `-`, stdin) on stdout; returns how many were errors.

    defaults and speculation: what a request has where its line is silent.
    """
    errors = 0
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        result = answer(engine, number, line, defaults, speculation)
        errors += "error" in result
        print_document(result, flush=True)
    return errors


def answer(
    engine: Engine, number: int, line: str, defaults: GenerateOptions, speculation: str
) -> dict[str, Any]:
    """The result object of one line: an answer, or {error: {type, message}}."""
    result: dict[str, Any] = {"schema": SCHEMA, "line": number}
    try:
        fields = _object(line)
        if "id" in fields:
            result["id"] = fields["id"]
        _require_known(fields)
        done = engine.complete(_request(fields, defaults, speculation))
    except DflashError as exc:
        return {**result, "error": {"type": type(exc).__name__, "message": str(exc)}}
    return {**result, **done.to_dict()}


def _lines(source: str) -> Iterator[str]:
    if source == "-":
        yield from sys.stdin
        return
    try:
        with Path(source).open(encoding="utf-8") as stream:
            yield from stream
    except OSError as exc:
        raise PromptError(f"the requests file {source} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise PromptError(f"{source} is not UTF-8 text ({exc}); convert it first") from exc


def _object(line: str) -> Mapping[str, Any]:
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


def _request(fields: Mapping[str, Any], defaults: GenerateOptions, speculation: str) -> Request:
    """The line's request: its own values over the command's."""
    from ...drafters.request import Request

    def whole(name: str, default: int | None) -> int | None:
        value = fields.get(name, default)
        if value is not None and not is_whole(value):
            raise OptionError(f"{name} is {value!r}, expected a whole number")
        return value

    stop = fields.get("stop", list(defaults.stop))
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise OptionError(f"stop is {stop!r}, expected a text or a list of texts")
    max_tokens = whole("max_tokens", defaults.max_tokens)
    if max_tokens is None:
        raise OptionError("max_tokens is null, expected a whole number")
    request = Request(
        prompt=_prompt(fields),
        messages=_messages(fields),
        max_tokens=max_tokens,
        sampling=_sampling(fields, defaults.sampling),
        stop=tuple(stop),
        speculation=parse_speculation(str(fields.get("speculation", speculation))),
        block_size=whole("block_size", defaults.block_size),
        draft_tokens=whole("draft_tokens", defaults.draft_tokens),
        gate=defaults.gate,
        reuse=fields.get("continue") is True,
    )
    request.options(defaults.prefill_step_size)  # values that no run could use, before it begins
    return request


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
    if isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one
        for one in value
    ):
        return value
    raise PromptError(f"messages is {value!r}, expected a list of objects with role and content")


def _sampling(fields: Mapping[str, Any], defaults: SamplingOptions) -> SamplingOptions:
    values = asdict(defaults)
    for name in SAMPLING_FIELDS:
        if name not in fields:
            continue
        value = fields[name]
        if name == "logit_bias":
            values[name] = _bias(value)
        else:
            kind: Kind = "whole" if name in WHOLE_FIELDS else "number"
            values[name] = checked(kind, name, value, OptionError)
    return SamplingOptions(**values)


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    """{"token id": addend} as pairs."""
    pairs = value.items() if isinstance(value, dict) else None
    if pairs is None or not all(_is_id(token) and is_number(bias) for token, bias in pairs):
        raise wrong_value("logit_bias", value, "an object of token ids and numbers", OptionError)
    return tuple((int(token), float(bias)) for token, bias in pairs)


def _is_id(text: str) -> bool:
    """Digits of an id that any vocabulary could have."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_ID_DIGITS
