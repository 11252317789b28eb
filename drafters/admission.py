"""Whether a request's caches fit into memory beside those under way, before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import mlx.core as mx

from ..core.cache.bank import Bank
from ..core.cache.kinds import cache_arrays
from ..core.cache.sizes import CacheSizes, measure_sizes
from ..core.decode.drafter import Drafter
from ..core.decode.loop import Generation
from ..core.errors import OptionError, OutOfRoom
from ..core.memory import Memory, MlxMemory, free_bytes
from ..core.target.target import Target

PREFIX_SHARE = 0.25
"""Of what is free after loading: the bytes of a bank that nobody set."""


@runtime_checkable
class SizedDrafter(Drafter, Protocol):
    """A drafter that can say what its context needs."""

    def context_bytes(self, tokens: int) -> int:
        """Bytes of its context for so many tokens."""


@dataclass(frozen=True)
class Asked:
    """What a request will hold at most.

    tokens: of its prompt and its answer; marks: on its way; drafters: whose contexts it has.
    """

    tokens: int
    marks: int
    drafters: tuple[Drafter, ...] = ()


@dataclass
class Admission:
    """The memory of one target's requests, and what those under way may still come to need."""

    target: Target
    memory: Memory = field(default_factory=MlxMemory)
    _sizes: CacheSizes | None = None
    _under_way: list[tuple[Generation, int]] = field(default_factory=list)

    def require_room(self, asked: Asked, bank: Bank) -> int:
        """The bytes that the request will need at most; the bank gives way where it must.

        Raises OutOfRoom, with both figures, where they are not there.
        """
        needed = self.bytes_of(asked)
        free = self._free()
        if needed > free:
            bank.shrink_to(max(0, bank.size_bytes - (needed - free)))
            free = self._free()
        if needed > free:
            running = self._running()
            beside = f" beside the {len(running)} requests under way" if running else ""
            raise OutOfRoom(
                f"{asked.tokens:,} tokens need {needed / 1e9:.2f} GB for their caches, and "
                f"{max(0, free) / 1e9:.2f} GB of memory are free{beside}; shorten the prompt, or "
                "ask for fewer tokens",
                can_wait=bool(running),
            )
        return needed

    def begin(self, generation: Generation, needed_bytes: int) -> None:
        """A request has begun that may come to hold so much."""
        self._under_way = [*self._running(), (generation, needed_bytes)]

    def bytes_of(self, asked: Asked) -> int:
        """Of the request's caches, marks and contexts."""
        sizes = self.sizes
        contexts = (one for one in asked.drafters if isinstance(one, SizedDrafter))
        return (
            sizes.cache_bytes(asked.tokens)
            + asked.marks * sizes.mark_bytes(asked.tokens)
            + sum(one.context_bytes(asked.tokens) for one in contexts)
        )

    @property
    def sizes(self) -> CacheSizes:
        """Measured once, by a pass over one token."""
        if self._sizes is None:
            cache = self.target.make_cache(1)
            self.target.forward_with_taps(mx.array([[0]]), cache)
            mx.eval(cache_arrays(cache))
            self._sizes = measure_sizes(cache, 1)
        return self._sizes

    def check_limit(self, limit_bytes: int) -> int:
        """The bytes of a bank; OptionError for none, and for more than there can be."""
        most = free_bytes(self.memory)
        if limit_bytes < 1:
            raise OptionError(f"a bank of prefixes needs at least one byte, got {limit_bytes}")
        if limit_bytes > most:
            raise OptionError(
                f"a bank of prefixes of {limit_bytes / 1e9:.1f} GB does not fit: "
                f"{max(0, most) / 1e9:.1f} GB of memory are free beside the models"
            )
        return limit_bytes

    def default_limit(self) -> int:
        """A quarter of what is free now."""
        return max(1, int(free_bytes(self.memory) * PREFIX_SHARE))

    def _running(self) -> list[tuple[Generation, int]]:
        return [(one, needed) for one, needed in self._under_way if not one.over]

    def _free(self) -> int:
        """Bytes that nobody has or may come to need."""
        growth = sum(max(0, needed - held_bytes(one)) for one, needed in self._running())
        return free_bytes(self.memory) - growth


def held_bytes(generation: Generation) -> int:
    """Bytes that a request under way holds now, its marks left out."""
    arrays: Iterable[mx.array] = [*cache_arrays(generation.cache), *generation.contexts.state()]
    return sum(int(array.nbytes) for array in arrays)
