"""The device's memory: how much there is, and how much MLX uses."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from .device import memory_bytes

KEPT_FREE = 0.1
"""Share of the memory that no request is given: passes need some, and so do others."""


class Memory(Protocol):
    """Of one device."""

    def total_bytes(self) -> int:
        """All that may be used."""

    def used_bytes(self) -> int:
        """What is in use now: weights, caches, contexts."""


class MlxMemory:
    """As MLX counts it."""

    def total_bytes(self) -> int:
        """What the device says of itself, else the machine's memory."""
        return memory_bytes()

    def used_bytes(self) -> int:
        """Arrays that are alive; buffers that MLX keeps for later ones are not among them."""
        return int(mx.get_active_memory())


def free_bytes(memory: Memory) -> int:
    """What may be given to requests, beside what is in use."""
    return int(memory.total_bytes() * (1 - KEPT_FREE)) - memory.used_bytes()
