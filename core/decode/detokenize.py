"""Text as ids come, for tokenizers whose decoder looks at more than one token.

mlx-lm's detokenizer of last resort decodes every line by itself, and so loses the space that such
decoders take from the front of what they see: the indentation of code.
"""

from __future__ import annotations

from typing import Any

REPLACEMENT = "\ufffd"
CONTEXT = 6
"""Pieces of text decoded before the new one: cleaning up of spaces looks back that far."""


def add_id(detokenizer: Any, token: int) -> None:
    """Show a streaming detokenizer an id; one that the tokenizer does not have has no text.

    A target's vocabulary may be padded: for such an id mlx-lm's detokenizers raise, or write an
    exclamation mark.
    """
    pieces = getattr(detokenizer, "tokenmap", None)
    if pieces is None or (token < len(pieces) and pieces[token] is not None):
        detokenizer.add_token(token)


class StreamingText:
    """mlx-lm's interface; the segments together are the tokenizer's own decoding of all ids, as
    they read behind another text: a space in front is kept.

    New text is what a decoding of the last tokens has more than one without the newest; it waits
    while it ends inside a character, and decoding never begins inside one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor: list[int] = tokenizer.encode("x", add_special_tokens=False)
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.tokens: list[int] = []
        self.text = ""
        self._ends = [0]
        self._offset = 0

    def add_token(self, token: int) -> None:
        """Take one id; one that the tokenizer does not have has no text."""
        if self._has(token):
            self.tokens.append(token)
            self._let_out(force=False)

    def finalize(self) -> None:
        """Let out what was held back."""
        self._let_out(force=True)

    @property
    def last_segment(self) -> str:
        """Text since the last look."""
        segment = self.text[self._offset :]
        self._offset = len(self.text)
        return segment

    def _let_out(self, force: bool) -> None:
        start, shown = self._ends[0], self._ends[-1]
        if shown == len(self.tokens):
            return
        before, whole = self._decode(start, shown), self._decode(start, len(self.tokens))
        is_cut = whole.endswith(REPLACEMENT)
        if is_cut and not force:
            return
        self.text += whole[len(before) :]
        # After a character that was cut off, what follows must not be decoded together with it.
        kept = [] if is_cut else self._ends[-CONTEXT:]
        self._ends = [*kept, len(self.tokens)]

    def _has(self, token: int) -> bool:
        try:
            return self._tokenizer.convert_ids_to_tokens(token) is not None
        except Exception:  # tokenizers in Python raise of every kind for an id that they lack
            return False

    def _decode(self, start: int, stop: int) -> str:
        text: str = self._tokenizer.decode([*self._anchor, *self.tokens[start:stop]])
        return text
