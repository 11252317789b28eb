"""The form of each norm weight is told by its own values, and by the others where these do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_suite.core.errors import TensorError
from dflash_suite.core.options import LoadOptions
from dflash_suite.drafters.engine import from_pair
from dflash_suite.drafters.mtp.norms import judge_norms, shift_norms
from dflash_suite.drafters.pair import load_pair
from dflash_suite.drafters.request import Request
from tests.kit.tiny_mtp import head_tensors, prefixed, save_target

Q, K, LAST = "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight", "norm.weight"
OTHERS = (
    "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight",
    "pre_fc_norm_embedding.weight",
    "pre_fc_norm_hidden.weight",
)
HEALTHY = {Q: 0.79, K: 0.77, LAST: 1.56, **dict.fromkeys(OTHERS, 0.05)}
"""Means of a raw head."""


def head(**shifted: bool) -> dict[str, mx.array]:
    """Norms of these means; by name, whether one was added. Keys: q, k, last, 0..3."""
    names = {"q": Q, "k": K, "last": LAST, **{f"n{at}": name for at, name in enumerate(OTHERS)}}
    return {
        name: mx.full((16,), HEALTHY[name] + shifted.get(key, False)) for key, name in names.items()
    }


ALL = dict.fromkeys(("q", "k", "last", "n0", "n1", "n2", "n3"), True)
MIXED: dict[str, dict[str, bool]] = {
    "raw": {},
    "shifted": ALL,
    "queries and keys raw": {**ALL, "q": False, "k": False},
    "queries raw": {**ALL, "q": False},
    "one other raw": {**ALL, "n1": False},
    "two others and the last shifted": {"n0": True, "n1": True, "n2": True, "last": True},
}


@pytest.mark.parametrize("case", MIXED)
def test_mixed_heads_become_what_they_were(case: str) -> None:
    """They kept their ids and lost their acceptance, without a word."""
    arrays = head(**MIXED[case])
    right = head(**ALL)
    made = shift_norms(dict(arrays), "head")
    for name, array in made.items():
        assert mx.allclose(array, right[name], atol=1e-6), name


def test_what_nothing_tells_is_an_error_that_names_it() -> None:
    half = head(n0=True, n1=True, q=True, k=True)
    with pytest.raises(TensorError, match=r"norm.weight \(mean 1.56\).*--mtp-norms raw"):
        judge_norms(half, "head")
    assert shift_norms(dict(half), "head", "raw")[Q][0].item() == pytest.approx(HEALTHY[Q] + 2)
    assert shift_norms(dict(half), "head", "shifted") == half


def test_a_mean_in_between_follows_its_like() -> None:
    arrays = head(**ALL) | {K: mx.full((16,), 1.1)}
    assert judge_norms(arrays, "head")[K] == "shifted"
    arrays = head() | {K: mx.full((16,), 1.1)}
    assert judge_norms(arrays, "head")[K] == "raw"


@pytest.mark.parametrize("stated", [None, "raw", "shifted"])
def test_the_option_reaches_the_head(stated: Any, tmp_path: Path) -> None:
    tensors = head_tensors()
    target = save_target(tmp_path / "target", prefixed(tensors))
    loading = LoadOptions(model=str(target), speculation="mtp", mtp_norms=stated, exact=False)
    pair = load_pair(loading)
    flat: Any = dict(tree_flatten(pair.drafters[0].model.parameters()))  # type: ignore[attr-defined]
    expected = tensors[Q] + (0 if stated == "shifted" else 1)
    assert mx.allclose(flat[Q], expected, atol=1e-6)
    assert from_pair(pair).complete(Request([3, 5, 7], max_tokens=6, gate=False)).stats.rounds > 0
