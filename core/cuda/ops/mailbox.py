"""Ids on their way from the device to the host, through memory that both see.

An array that the host reads is managed memory in MLX: its page comes over when it is read and goes
back when the device writes into it again, at the pace of decoding 100 microseconds each time. Here
a kernel writes the ids into page-locked memory of the host, which looks at it until they are there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from ...device import read_ids, start_eval
from ...errors import DeviceError
from ..runtime.assemble import primitives
from ..runtime.driver import shared_words
from ..runtime.launch import Kernel, SmallCall, one_block
from .ends import numbers

LETTERS = 64
"""That lie there at a time; a request has two."""
WORDS = 64
"""Of a letter: its number, then ids."""
PATIENCE_SEC = 1.0
"""After that MLX is asked what became of the kernel."""
LAST = 1 << 30
POST = """
  volatile int* box = (volatile int*)((unsigned long long)(unsigned)address[0] |
      (unsigned long long)(unsigned)address[1] << 32) + place;
  int before = 1;
  COPIES
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // the ids are there before their letter's number is
    box[0] = letter;
    out[0] = letter;
  }
"""
COPY = """
  for (int i = threadIdx.x; i < N_I; i += dflash::kWarps * 32) box[before + i] = int(x_I[i]);
  before += N_I;
"""


@cache
def _sender(*dtypes: mx.Dtype) -> SmallCall:
    """For vectors of these types."""
    indices = range(len(dtypes))
    body = POST.replace("COPIES", "".join(COPY.replace("_I", f"_{index}") for index in indices))
    names = ("address", *(f"x_{index}" for index in indices))
    kernel = Kernel(f"post_{len(dtypes)}", names, ("out",), body, primitives())
    values = ("letter", "place", *(f"N_{index}" for index in indices))
    return one_block(kernel, (mx.int32, *dtypes, mx.int32), values, (WORDS,))


class Mailbox:
    """words: LETTERS * WORDS C ints; address: the device's for them."""

    def __init__(self, words: Any, address: int) -> None:
        self._words = words
        halves = [address & 0xFFFFFFFF, address >> 32]
        signed = [half - (1 << 32) if half >> 31 else half for half in halves]
        self._address = numbers([*signed, 0, 0])
        mx.eval(self._address)
        self._posted = 0

    def post(self, arrays: Sequence[mx.array]) -> Callable[[], list[list[int]]]:
        """Queue vectors of int32 or uint32 ids, fewer than WORDS together; the function waits for
        them."""
        turn = self._posted = self._posted + 1
        letter, place = turn % LAST + 1, turn % LETTERS * WORDS
        sizes = [array.shape[0] for array in arrays]
        if sum(sizes) >= WORDS:
            raise DeviceError(
                f"{sum(sizes)} ids were posted at once, and a letter holds {WORDS - 1}; read them "
                "from their arrays"
            )
        send = _sender(*(array.dtype for array in arrays))
        sent = send([self._address, *arrays], [letter, place, *sizes])
        start_eval([sent])

        def fetch() -> list[list[int]]:
            if self._posted - turn >= LETTERS:  # other requests' letters may lie there by now
                return [read_ids(array) for array in arrays]
            self._wait(place, letter, sent)
            ids = self._words[place + 1 : place + 1 + sum(sizes)]
            ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
            return [ids[end - size : end] for end, size in zip(ends, sizes, strict=True)]

        return fetch

    def _wait(self, place: int, letter: int, sent: mx.array) -> None:
        words, late = self._words, time.monotonic() + PATIENCE_SEC
        while words[place] != letter:
            if time.monotonic() > late:
                mx.eval(sent)  # raises where the device failed
                if words[place] != letter:
                    raise DeviceError(
                        "the GPU ended a pass without handing its tokens over; use --kernels stock"
                    )
            time.sleep(0)


@cache
def mailbox() -> Mailbox | None:
    """The process's own; None, and a RuntimeWarning, where the host has no memory for it."""
    try:
        return Mailbox(*shared_words(LETTERS * WORDS))
    except DeviceError as exc:
        warnings.warn(f"{exc}; ids are read from the GPU more slowly", RuntimeWarning, stacklevel=2)
        return None
