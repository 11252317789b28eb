"""How many bytes the caches of a request will need, known before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .layer_caches import class_of, kind_of, window_of


@dataclass(frozen=True)
class CacheSizes:
    """Of one target's caches.

    state_bytes: of recurrent layers, whatever the number of tokens; token_bytes: a token, of layers
    that see all before it; windows: (tokens, bytes a token) of each layer that slides.
    """

    state_bytes: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...] = ()

    def cache_bytes(self, tokens: int) -> int:
        """Of a cache that holds so many tokens."""
        return self.token_bytes * tokens + self.mark_bytes(tokens)

    def mark_bytes(self, tokens: int) -> int:
        """Of a mark after so many tokens: what is overwritten by later ones."""
        sliding = sum(min(tokens, window) * size for window, size in self.windows)
        return self.state_bytes + sliding


def measure_sizes(cache: Sequence[Any], tokens: int) -> CacheSizes:
    """The sizes of caches that have been fed `tokens` tokens, by the arrays in them."""
    state_bytes, token_bytes = 0, 0
    windows: list[tuple[int, int]] = []
    for layer in cache:
        arrays = class_of(layer).rows(layer)
        if kind_of(layer) == "recurrent":
            state_bytes += sum(int(array.nbytes) for array in arrays)
            continue
        row_bytes = sum(int(array.nbytes) for array in arrays) // tokens
        window = window_of(layer)
        if window is None:
            token_bytes += row_bytes
        else:
            windows.append((window, row_bytes))
    return CacheSizes(state_bytes, token_bytes, tuple(windows))
