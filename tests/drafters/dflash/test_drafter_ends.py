"""Embedding and head are the target's own: tied, untied, quantized in whole or in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.stats import Chunk
from dflash_suite.core.target.families import backbone_class
from dflash_suite.core.target.target import Target
from dflash_suite.drafters.dflash.container import DrafterKind
from tests.kit.naive_drafter import NaiveDrafter, as_float64
from tests.kit.tiny import (
    GROUP_SIZE,
    HIDDEN,
    VOCAB,
    Kind,
    PieceDetokenizer,
    as_ids,
    assert_varied,
    make_model,
    prompt,
    stock_greedy,
    target_config,
)
from tests.kit.tiny_drafter import (
    BLOCK,
    TAPS,
    make_drafter,
    observe_taps,
    random_tensors,
    raw_drafter,
)

Chooses = Callable[[str], bool]
QUANTIZED: dict[str, Chooses] = {
    "plain": lambda path: False,
    "all": lambda path: True,
    "head": lambda path: path.endswith("lm_head"),
    "body": lambda path: "layers" in path,
    "embedding": lambda path: path.endswith("embed_tokens"),
}
TARGETS: list[tuple[Kind, bool, str]] = [
    ("hybrid", False, "plain"),
    ("hybrid", True, "plain"),
    ("hybrid", False, "all"),
    ("dense", False, "plain"),
    ("dense", True, "plain"),
    ("dense", False, "all"),
    ("dense", False, "head"),
    ("dense", False, "body"),
    ("dense", True, "embedding"),
    ("llama", True, "all"),
]
"""Kind, tied or not, which modules are packed to four bits."""


def make(kind: Kind, tied: bool, quantized: str) -> Target:
    changes = {"tie_word_embeddings": tied}
    model = make_model(kind, **changes)  # type: ignore[arg-type]
    chooses = QUANTIZED[quantized]
    nn.quantize(
        model,
        group_size=GROUP_SIZE,
        bits=4,
        class_predicate=lambda path, module: hasattr(module, "to_quantized") and chooses(path),
    )
    mx.eval(model.parameters())
    config = target_config(kind, **changes)  # type: ignore[arg-type]
    return Target(backbone_class(config.model_type)(model), config)


def unpacked(module: Any) -> mx.array:
    """The (vocab, hidden) matrix of an embedding or a head, packed or not."""
    if "scales" not in module:
        weight: mx.array = module.weight
        return weight
    return mx.dequantize(
        module.weight, module.scales, module.biases, module.group_size, module.bits
    )


@pytest.fixture(
    params=TARGETS, ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}-{case[2]}"
)
def target(request: pytest.FixtureRequest) -> Target:
    return make(*request.param)


def matrices(target: Target) -> tuple[mx.array, mx.array]:
    """(embedding, head) as the target's modules hold them."""
    text = target.backbone.text
    tied = target.config.raw.get("text_config", target.config.raw)["tie_word_embeddings"]
    embedding = unpacked(text.model.embed_tokens)
    assert hasattr(text, "lm_head") != tied
    return embedding, embedding if tied else unpacked(text.lm_head)


def test_the_drafters_logits_come_from_the_targets_head(target: Target, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, ends=target)
    embedding, head = matrices(target)
    hidden = mx.random.normal((1, 4, HIDDEN), key=mx.random.key(1))
    logits = drafter.block_logits(hidden)
    assert logits.shape == (1, 4, VOCAB)
    assert mx.array_equal(logits, target.head_logits(hidden))
    np.testing.assert_allclose(
        as_float64(logits), as_float64(hidden) @ as_float64(head).T, atol=2e-3, rtol=0
    )
    ids = mx.array([[5, 0, VOCAB - 1]])
    assert mx.array_equal(target.embed_token_ids(ids), embedding[ids])
    stock = target.backbone.model(ids)
    own = target.forward_with_taps(ids, target.make_cache())
    assert mx.array_equal(target.logits_from_hidden(own.hidden), stock)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_drafts_are_those_of_the_targets_two_matrices(
    target: Target, tmp_path: Path, kind: DrafterKind
) -> None:
    """With taps of the target itself, against the float64 loops over its unpacked matrices."""
    drafter = make_drafter(tmp_path, kind, ends=target)
    raw = raw_drafter(kind)
    naive = NaiveDrafter(raw, random_tensors(raw), *matrices(target))
    ids = mx.array([prompt(9)])
    taps = target.forward_with_taps(ids, target.make_cache(), TAPS).taps
    assert taps is not None
    observe_taps(drafter, taps)
    rows = as_float64(taps)[0]
    hidden = as_float64(drafter.block_hidden(mx.array([5]), BLOCK - 1))[0]
    np.testing.assert_allclose(hidden, naive.hidden(rows, 9, 5, BLOCK - 1), atol=5e-4, rtol=0)
    drafts = as_ids(drafter.draft(mx.array([5]), BLOCK - 1))
    assert drafts == naive.draft(rows, 9, 5, BLOCK - 1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_any_target_decodes_its_own_tokens(
    target: Target, tmp_path: Path, kind: DrafterKind
) -> None:
    """A random drafter over every kind of head, and the ids of plain decoding."""
    drafter = make_drafter(tmp_path, kind, ends=target)
    ids = prompt(12)
    options = GenerateOptions(max_tokens=40, block_size=BLOCK, gate=False)
    run = Generation(target, ids, PieceDetokenizer(), drafter=drafter, options=options)
    tokens = [token for event in run if isinstance(event, Chunk) for token in event.token_ids]
    plain = stock_greedy(target.backbone.model, ids, 40)
    assert tokens == plain and len(tokens) == 40
    assert run.stats.rounds > 5 and run.stats.accepted < run.stats.drafted
    if hasattr(target.backbone.text, "lm_head"):
        assert_varied(plain, over=15, within=40)
