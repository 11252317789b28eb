"""A KV cache whose attention always spans the same number of keys.

A kernel's split of the keys, and with it the last bits of a sum, follows how many there are. One
buffer of a fixed size and a mask leave nothing that could follow.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ..device import memory_bytes
from ..errors import CacheError


class FixedKVCache(KVCache):
    """Keys and values at their own positions in a buffer of `capacity` rows, handed out whole.

    window: a row sees so many rows, itself included; None: all before it. Rows beyond the offset
    are scratch, and masked. Any number of rows can be dropped, sliding or not.
    """

    keys: mx.array | None
    values: mx.array | None

    def __init__(self, capacity: int, window: int | None = None, layers: int = 1) -> None:
        """layers: how many such buffers the target has, for what they need together."""
        stock: Any = super()
        stock.__init__()
        self._layers = layers
        self.capacity = capacity
        self.window = window

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """(1, heads, T, dim) rows behind the others -> the whole buffers, capacity rows long.

        Raises CacheError, with nothing changed, where they do not fit.
        """
        rows = keys.shape[2]
        if self.offset + rows > self.capacity:
            raise CacheError(
                f"a cache of {self.capacity} rows holds {self.offset} and cannot take {rows} more: "
                "make it with make_cache(rows) for the prompt, the tokens and a block"
            )
        if self.keys is None or self.values is None:
            self._require_memory(keys, values)
            self.keys, self.values = self._empty(keys), self._empty(values)
        placed = slice(self.offset, self.offset + rows)
        self.keys[..., placed, :] = keys
        self.values[..., placed, :] = values
        self.offset += rows
        return self.keys, self.values

    def _require_memory(self, keys: mx.array, values: mx.array) -> None:
        row_bytes = sum(array.nbytes // array.shape[2] for array in (keys, values))
        needed, there = row_bytes * self.capacity * self._layers, memory_bytes()
        if needed > there:
            raise CacheError(
                f"keys and values of {self.capacity:,} tokens at a fixed size need "
                f"{needed / 1e9:.1f} GB, and this device has {there / 1e9:.1f} GB: ask for fewer "
                "tokens, or run with --no-exact"
            )

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """(N, capacity) booleans for the next N rows; called by mlx-lm's create_attention_mask."""
        rows = mx.arange(self.offset, self.offset + N)[:, None]
        keys = mx.arange(self.capacity)[None]
        seen = keys <= rows
        window = self.window or window_size
        return seen if window is None else seen & (keys > rows - window)

    def _empty(self, rows: mx.array) -> mx.array:
        batch, heads, _, dim = rows.shape
        return mx.zeros((batch, heads, self.capacity, dim), rows.dtype)
