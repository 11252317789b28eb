"""Prompts of a benchmark: the bundled sets, those of the bundled pair, or a file.

A prompt is raw text, a chat turn or whole conversation, or ids. Text becomes ids here, once, so
that every arm is given the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from ...core.bench.types import BenchPrompt
from ...core.decode.chat import Chat, encode_text, render_chat
from ...core.decode.messages import plain_messages
from ...core.decode.prompt_ids import check_prompt
from ...core.errors import OptionError, PromptError
from ...core.json_values import are_whole, parse_object, read_json, text_lines
from ..bundled.paths import PROMPTS_FILE

SETS_FILE = Path(__file__).resolve().parent / "prompt_sets.json"
SETS = ("chat", "code", "prose", "edit")
PAIR_SETS = ("hand", "hand-chat", "held-code", "held-chat")
"""Kinds of the bundled pair's prompts.jsonl, whose ids its reference runs were given."""
CONTENTS = ("prompt_ids", "messages", "user", "text", "prompt")

Record = Mapping[str, Any]


def collect_prompts(
    tokenizer: Any,
    vocab_size: int,
    *,
    file: Path | None = None,
    sets: Sequence[str] = (),
    bundled_target: bool = False,
    most: int | None = None,
) -> list[BenchPrompt]:
    """At most `most` prompts, taken from the sets by turns, so that each has its share.

    Without a file or sets: the bundled pair's own for the bundled target, else chat, code, prose
    and edit. Raises OptionError for an unknown set, PromptError for a file that cannot be used.
    """
    if file is not None:
        groups = [read_prompt_file(file)]
    else:
        groups = [_set(name) for name in sets or (PAIR_SETS if bundled_target else SETS)]
    spread = [record for record in chain.from_iterable(zip_longest(*groups)) if record is not None]
    own_ids = bundled_target and file is None
    prompts = [encode_record(tokenizer, record, own_ids) for record in spread[:most]]
    for prompt in prompts:
        try:
            check_prompt(prompt.ids, vocab_size)
        except PromptError as exc:
            raise PromptError(f"prompt {prompt.name}: {exc}") from exc
    return prompts


def read_prompt_file(file: Path) -> list[dict[str, Any]]:
    """.jsonl: an object a line, with `text` or `prompt` (raw), `user` (a chat turn), `messages`
    (a conversation) or `prompt_ids`, and perhaps `name` and `kind`. Else: a raw prompt a line."""
    try:
        lines = text_lines(file.read_bytes().decode("utf-8-sig"))
    except OSError as exc:
        raise PromptError(f"the prompt file {file} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise PromptError(f"{file} is not UTF-8 text ({exc}); convert it first") from exc
    used = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not used:
        raise PromptError(f"{file} has no prompt in it")
    if file.suffix not in (".jsonl", ".json"):
        return [{"name": f"line-{number}", "kind": "file", "text": line} for number, line in used]
    return [_parse(line, f"{file} line {number}", f"line-{number}") for number, line in used]


def encode_record(tokenizer: Any, record: Record, own_ids: bool = False) -> BenchPrompt:
    """A record as ids; a chat turn is raw text where the tokenizer has no template.

    own_ids: take the recorded ids, which were made by this very tokenizer.
    """
    order = CONTENTS if own_ids else (*CONTENTS[1:], CONTENTS[0])
    key = next(key for key in order if key in record)
    content = record[key]
    if key == "prompt_ids":
        ids = content
    elif key in ("text", "prompt"):
        ids = encode_text(tokenizer, content)
    else:
        messages = content if key == "messages" else [{"role": "user", "content": content}]
        if tokenizer.has_chat_template:
            ids = render_chat(tokenizer, Chat(messages))
        else:
            ids = encode_text(
                tokenizer, "".join(one["content"] + "\n\n" for one in plain_messages(messages))
            )
    return BenchPrompt(record["name"], record["kind"], tuple(ids))


def _set(name: str) -> list[dict[str, Any]]:
    if name in PAIR_SETS:
        return [record for record in read_prompt_file(PROMPTS_FILE) if record["kind"] == name]
    if name not in SETS:
        raise OptionError(
            f"prompt set '{name}' is unknown; there are {', '.join(SETS + PAIR_SETS)}"
        )
    return [{"kind": name, **record} for record in read_json(SETS_FILE)[name]]


def _parse(line: str, where: str, name: str) -> dict[str, Any]:
    record = parse_object(line, where, PromptError, "; give one object a line")
    if not any(key in record for key in CONTENTS):
        raise PromptError(f"{where}: expected an object with one of {', '.join(CONTENTS)}")
    for key, kind in (("text", str), ("prompt", str), ("user", str), ("name", str), ("kind", str)):
        if not isinstance(record.get(key, ""), kind):
            raise PromptError(f"{where}: '{key}' is not a text")
    if not _are_messages(record.get("messages", [])):
        raise PromptError(f"{where}: 'messages' is not a list of {{role, content}} texts")
    if not are_whole(record.get("prompt_ids", [])):
        raise PromptError(f"{where}: 'prompt_ids' is not a list of whole numbers")
    return {"name": name, "kind": "file", **record}


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("role"), str)
        and isinstance(one.get("content"), str)
        for one in value
    )


def kinds_of(prompts: Iterable[BenchPrompt]) -> dict[str, int]:
    """How many prompts of each kind."""
    counts: dict[str, int] = {}
    for prompt in prompts:
        counts[prompt.kind] = counts.get(prompt.kind, 0) + 1
    return counts
