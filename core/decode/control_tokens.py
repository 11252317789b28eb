"""Control tokens that a user wrote: text, and no end of the user's turn.

A tokenizer takes `<|im_end|>` for the token wherever it stands, so that a message could end its own
turn and begin another role's. In what users and tools say, special tokens are marked before the
template renders them; what lies between two real special tokens and has a mark in it is then
encoded as plain text. A prompt without such a mark is encoded as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPEN, CLOSE = "\ue1d0", "\ue1d1"
"""Around a token that is meant as text: private characters, of which a text has no use. Of a text
that has them all the same they are taken away, where a token is marked too."""
OUTSIDE = ("user", "tool", "function")
"""Roles whose content comes from outside."""
Message = dict[str, Any]


def special_tokens(tokenizer: Any) -> list[str]:
    """Texts of the tokens that the tokenizer marks as special, the longest first."""
    held = getattr(tokenizer, "added_tokens_decoder", None) or {}
    texts = {one.content for one in held.values() if one.special and one.content.strip()}
    return sorted(texts, key=lambda text: (-len(text), text))


def mark_messages(
    messages: Sequence[Mapping[str, Any]], specials: Sequence[str]
) -> list[Message] | None:
    """The messages with special tokens marked in what comes from outside; None where there is
    none."""
    pattern = _pattern(specials)
    if pattern is None:
        return None
    found, marked = False, []
    for message in messages:
        made = dict(message)
        content = made.get("content")
        if made.get("role") in OUTSIDE and isinstance(content, str):
            content = content.replace(OPEN, "").replace(CLOSE, "")
            made["content"] = pattern.sub(lambda one: f"{OPEN}{one.group()}{CLOSE}", content)
            found |= made["content"] != content
        marked.append(made)
    return marked if found else None


def encode_marked(
    text: str, specials: Sequence[str], encode: Callable[..., list[int]]
) -> list[int]:
    """Ids of a rendered chat with marks in it.

    encode: of the tokenizer, without added tokens; `split_special_tokens` encodes these as text.
    """
    ids: list[int] = []
    pending = ""
    for piece, is_real in _pieces(text, "|".join(map(re.escape, specials))):
        if is_real or OPEN not in piece:
            pending += piece
            continue
        ids += encode(pending, add_special_tokens=False) if pending else []
        plain = piece.replace(OPEN, "").replace(CLOSE, "")
        ids += encode(plain, add_special_tokens=False, split_special_tokens=True)
        pending = ""
    return [*ids, *(encode(pending, add_special_tokens=False) if pending else [])]


def _pieces(text: str, specials: str) -> list[tuple[str, bool]]:
    """The text in order, cut at the special tokens that are not marked: (piece, whether it is
    such a token). specials: a pattern of them."""
    either = re.compile(f"(?P<marked>{OPEN}(?:{specials}){CLOSE})|(?P<real>{specials})")
    pieces: list[tuple[str, bool]] = []
    start = 0
    for found in either.finditer(text):
        if found.lastgroup == "real":
            pieces += [(text[start : found.start()], False), (found.group(), True)]
            start = found.end()
    return [one for one in [*pieces, (text[start:], False)] if one[0]]


def _pattern(specials: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, specials))) if specials else None
