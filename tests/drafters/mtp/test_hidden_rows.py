"""Which rows of the target an MTP head is fed: those after the final norm, or those before it.

The head norms what it is fed, so a target whose norm is all ones cannot tell the two apart; here
the norms are far from that. The expected rows come from mlx-lm's own forward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.options import MtpHidden
from dflash_suite.core.target.target import Target
from tests.kit.naive_drafter import as_float64
from tests.kit.naive_mtp import NaiveHead
from tests.kit.tiny import HIDDEN, as_ids, prompt
from tests.kit.tiny_mtp import head_tensors, tiny_head

ANCHOR, COUNT = 7, 5


def uneven(seed: int) -> mx.array:
    """(HIDDEN,) weights of a norm that weighs its channels very differently, some negatively."""
    return 2 * mx.random.normal((HIDDEN,), key=mx.random.key(seed))


def stock_rows(target: Target, ids: list[int], hidden: MtpHidden) -> Any:
    """(T, HIDDEN) in float64 by mlx-lm's own forward, with the final norm or without it."""
    body = target.backbone.text.model
    norm = body.norm
    if hidden == "pre":
        body.norm = nn.Identity()
    try:
        return as_float64(body(mx.array([ids]))[0])
    finally:
        body.norm = norm


@pytest.mark.quick
@pytest.mark.parametrize("hidden", ["post", "pre"])
def test_a_head_is_fed_the_rows_of_its_kind(tmp_path: Path, hidden: MtpHidden) -> None:
    tensors = head_tensors()
    tensors["norm.weight"] = uneven(3) - 1  # stored less one
    target, drafter = tiny_head(tmp_path, tensors, hidden)
    text = target.backbone.text
    text.model.norm.weight = uneven(4)
    naive = NaiveHead(tensors, text.model.embed_tokens.weight, text.lm_head.weight)
    wrong: MtpHidden = "pre" if hidden == "post" else "post"
    for seed in range(3):
        ids = prompt(12, seed)
        fed = {kind: stock_rows(target, ids, kind) for kind in (hidden, wrong)}
        tokens = [*ids[1:], ANCHOR]
        right = naive.chain(fed[hidden], tokens, COUNT, pre=hidden == "pre")
        assert right[0] != naive.chain(fed[wrong], tokens, COUNT, pre=hidden == "pre")[0]
        assert right != naive.chain(fed[hidden], tokens, COUNT, pre=hidden == "post")
        result = target.forward_with_taps(mx.array([ids]), target.make_cache(), drafter.tap_ids)
        drafter.reset(0)
        drafter.observe(TargetRows(0, mx.array(ids), result.taps, result.hidden))
        assert as_ids(drafter.draft(mx.array([ANCHOR]), COUNT)) == right
