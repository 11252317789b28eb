"""Text as ids come, for tokenizers whose decoder looks at more than one token.

mlx-lm's detokenizer of last resort decodes every line by itself, and so loses the space that such
decoders take from the front of what they see: the indentation of code.
"""

from __future__ import annotations

from typing import Any

REPLACEMENT = "\ufffd"
CONTEXT = 6
"""Tokens decoded before the new ones, so that none of these is the first."""


class StreamingText:
    """mlx-lm's interface; the segments together are the tokenizer's own decoding of all ids.

    New text is what a decoding of the last tokens has more than one without the newest; it waits
    while it ends inside a character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.tokens: list[int] = []
        self.text = ""
        self._start = 0
        self._shown = 0
        self._offset = 0

    def add_token(self, token: int) -> None:
        """Take one id."""
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
        before: str = self._tokenizer.decode(self.tokens[self._start : self._shown])
        whole: str = self._tokenizer.decode(self.tokens[self._start :])
        if not whole.startswith(before):  # a decoder that changes its mind about earlier text
            before = whole[: len(before)]
        if whole.endswith(REPLACEMENT) and not force:
            return
        self.text += whole[len(before) :]
        self._shown = len(self.tokens)
        self._start = max(0, self._shown - CONTEXT)
