"""Randomness is used once: no two draws of a request share a key, and a key that was split into
new ones is not drawn from as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.decode.drafter import Drafter
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.core.target.target import Target
from tests.kit.small_vocabulary import KINDS, PROMPT_IDS, DrawingKind, small_pair
from tests.kit.tiny import PieceDetokenizer

DRAWING = ("uniform", "normal", "bernoulli", "randint", "categorical", "gumbel", "permutation")
Key = tuple[int, ...]


@dataclass
class Keys:
    """The keys that were drawn from, and those that were split, in order."""

    drawn: list[Key] = field(default_factory=list)
    split: list[Key] = field(default_factory=list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Look at every call of mlx's random functions from now on."""
        for name in DRAWING:
            patch.setattr(mx.random, name, watched(getattr(mx.random, name), self.drawn))
        patch.setattr(mx.random, "split", watched(mx.random.split, self.split))


def watched(function: Any, seen: list[Key]) -> Callable[..., Any]:
    """The same function, which notes the key that it is called with."""

    def call(*args: Any, **kwargs: Any) -> Any:
        key = kwargs.get("key", args[0] if args and function is _split else None)
        assert key is not None, "drawn from the state that all of mlx shares: no seed repeats it"
        seen.append(tuple(key.tolist()))
        return function(*args, **kwargs)

    return call


_split: Any = mx.random.split


def keys_of(target: Target, drafter: Drafter | None, patch: pytest.MonkeyPatch) -> Keys:
    """The keys of one sampled request, of which some drafts are kept and some refused."""
    keys = Keys()
    sampling = SamplingOptions(temperature=0.9, top_k=5, seed=2)
    options = GenerateOptions(max_tokens=12, gate=False, sampling=sampling)
    run = Generation(target, PROMPT_IDS, PieceDetokenizer(), drafter, options)
    keys.watch(patch)
    assert sum(1 for _ in run) > 0
    assert drafter is None or 0 < run.stats.accepted < run.stats.drafted
    return keys


@pytest.mark.quick
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_no_key_is_used_twice(
    kind: DrawingKind | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that replaces a refused draft is drawn with another key than the one that refused."""
    target, drafter = small_pair(tmp_path, kind or "dflash")
    keys = keys_of(target, drafter if kind else None, monkeypatch)
    assert len(keys.drawn) >= 12 and len(keys.split) >= 6
    for used in (keys.drawn, keys.split):
        assert len(set(used)) == len(used), "two calls share a key"
    assert not set(keys.drawn) & set(keys.split)
