"""A target with a filled cache that can be put back, and the calls that the figures time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, make_prompt_cache
from results import FILE

from dflash_suite.core.cache.kinds import cache_arrays
from dflash_suite.core.cache.place import come_back, take_place
from dflash_suite.core.cuda.ops.fused_ops import cuda_in_use
from dflash_suite.core.decode.choose import greedy
from dflash_suite.core.target.target import Target, TargetPass

Undo = Callable[[], None]


@dataclass(frozen=True)
class Arguments:
    """What the commands have in common."""

    shape: Any
    precision: Any
    contexts: tuple[int, ...]
    repeats: int
    file: Path
    force: bool


def no_gpu() -> bool:
    """True, and said, where the kernels cannot run: then nothing is right or wrong."""
    if cuda_in_use():
        return False
    print("no CUDA GPU here: nothing was checked")
    return True


def parse(description: str, contexts: tuple[int, ...] = (64, 4096)) -> Arguments:
    """--shape, --precision, --context (may be repeated), --repeats, --results, --force."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", default="9b", choices=["9b", "27b", "35b-a3b", "tiny"])
    parser.add_argument("--precision", default="bf16", choices=["bf16", "q4"])
    parser.add_argument("--context", type=int, action="append", help="tokens in the cache")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--results", type=Path, default=FILE)
    parser.add_argument("--force", action="store_true", help="measure rows that are there already")
    given = parser.parse_args()
    return Arguments(
        given.shape,
        given.precision,
        tuple(given.context or contexts),
        given.repeats,
        given.results,
        given.force,
    )


def prompt_ids(count: int, vocab: int, seed: int = 3) -> mx.array:
    """(1, count) seeded ids."""
    mx.random.seed(seed)
    return mx.random.randint(0, vocab, (1, count))


def filled_cache(target: Target, context: int, step: int = 2048) -> list[Any]:
    """A cache that holds `context` seeded tokens."""
    cache = target.make_cache()
    ids = prompt_ids(context, target.config.vocab_size)
    for start in range(0, context, step):
        target.forward_with_taps(ids[:, start : start + step], cache)
        mx.eval(cache_arrays(cache))
    return cache


def stock_copy(model: Any, cache: Sequence[Any]) -> list[Any]:
    """mlx-lm's own caches over copies of the same contents."""
    copies: list[Any] = make_prompt_cache(model)
    for entry, copy in zip(cache, copies, strict=True):
        if isinstance(entry, ArraysCache):
            copy[0], copy[1] = entry[0] + 0, entry[1] + 0
        else:
            keys, values = entry.keys_and_values()
            copy.update_and_fetch(keys + 0, values + 0)
    mx.eval(cache_arrays(copies))
    return copies


def bookmark(cache: Sequence[Any]) -> Undo:
    """A function that puts the cache back to where it stands now."""
    place = take_place(cache, lasting=True)
    return lambda: come_back(cache, place)


def verify_call(
    target: Target, cache: Sequence[Any], rows: int, taps: Sequence[int]
) -> Callable[[], TargetPass]:
    """One verify pass with the ids read, as the decode loop does it."""
    ids = prompt_ids(rows, target.config.vocab_size, seed=5)

    def call() -> TargetPass:
        result = target.verify_rows(ids, cache, taps)
        greedy(target.logits_from_hidden(result.hidden)[0]).tolist()
        return result

    return call


def stock_call(model: Any, cache: Sequence[Any], rows: int, vocab: int) -> Callable[[], object]:
    """One forward of mlx-lm with its own greedy choice read."""
    ids = prompt_ids(rows, vocab, seed=5)

    def call() -> object:
        return greedy(model(ids, cache=cache)[0]).tolist()

    return call
