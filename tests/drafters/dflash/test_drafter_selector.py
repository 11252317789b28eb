"""DFlash2's candidate selector against brute force, ties included."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.drafters.dflash.layers import CandidateSelector
from tests.kit.naive_drafter import as_float64, select
from tests.kit.tiny import HIDDEN, VOCAB, as_ids
from tests.kit.tiny_drafter import BLOCK, make_drafter, observe_taps, random_ends, tap_rows

pytestmark = pytest.mark.quick

NAME = "candidate_selector"


def make_selector(directory: Path, top_k: int = 4, seed: int = 0) -> CandidateSelector:
    selector: CandidateSelector = make_drafter(
        directory, seed=seed, selector_top_k=top_k
    ).model.candidate_selector
    return selector


def brute_force(
    selector: CandidateSelector, hidden: mx.array, logits: mx.array, anchor: int
) -> list[int]:
    weights = {
        f"{NAME}.hidden_projection.weight": as_float64(selector.hidden_projection.weight),
        f"{NAME}.predecessor_codebook": as_float64(selector.predecessor_codebook),
        f"{NAME}.successor_codebook": as_float64(selector.successor_codebook),
    }
    return select(as_float64(hidden)[0], as_float64(logits)[0], anchor, weights, selector.top_k)


def random_rows(rows: int, seed: int) -> tuple[mx.array, mx.array]:
    """(hidden, logits) of a block; the logits differ little, so that the pairs decide."""
    keys = mx.random.split(mx.random.key(seed))
    hidden = mx.random.normal((1, rows, HIDDEN), key=keys[0])
    return hidden, 0.3 * mx.random.normal((1, rows, VOCAB), key=keys[1])


@pytest.mark.parametrize("top_k", [1, 2, 4, 16, VOCAB])
@pytest.mark.parametrize("rows", [1, BLOCK])
def test_the_path_is_that_of_brute_force(tmp_path: Path, top_k: int, rows: int) -> None:
    selector = make_selector(tmp_path, top_k)
    other_than_argmax = 0
    for seed in range(6):
        hidden, logits = random_rows(rows, seed)
        path = as_ids(selector(hidden, logits, mx.array([seed])))
        assert path == brute_force(selector, hidden, logits, seed)
        other_than_argmax += path != as_ids(mx.argmax(logits[0], axis=-1))
    assert (other_than_argmax > 0) == (top_k > 1)


def test_the_first_predecessor_is_the_anchor_and_then_the_choice(tmp_path: Path) -> None:
    selector = make_selector(tmp_path, 16)
    hidden, logits = random_rows(BLOCK, 3)
    paths = {tuple(as_ids(selector(hidden, logits, mx.array([anchor])))) for anchor in range(40)}
    assert len({path[0] for path in paths}) > 1  # the anchor decides the first draft
    # Where two paths meet they go on alike: only the predecessor and the row count.
    for one in paths:
        for two in paths:
            for row in range(BLOCK - 1):
                if one[row] == two[row]:
                    assert one[row + 1] == two[row + 1]


def test_a_tie_of_scores_goes_to_the_likelier_candidate(tmp_path: Path) -> None:
    """Small whole numbers, exact in float32, so that scores tie often; `>` must be strict."""
    selector = make_selector(tmp_path, 8)
    rank = int(selector.predecessor_codebook.shape[1])
    key = mx.random.key(2)
    selector.hidden_projection.weight = mx.eye(HIDDEN)[:rank]
    selector.predecessor_codebook = mx.random.randint(-1, 2, (VOCAB, rank), key=key).astype(
        mx.float32
    )
    selector.successor_codebook = selector.predecessor_codebook[::-1]
    ties = 0
    for seed in range(20):
        keys = mx.random.split(mx.random.key(seed))
        hidden = mx.random.randint(-1, 2, (1, BLOCK, HIDDEN), key=keys[0]).astype(mx.float32)
        order = mx.argsort(mx.random.normal((1, BLOCK, VOCAB), key=keys[1]), axis=-1)
        logits = order.astype(mx.float32)  # a permutation: no two logits are equal
        path = as_ids(selector(hidden, logits, mx.array([seed])))
        assert path == brute_force(selector, hidden, logits, seed)
        ties += count_ties(selector, hidden, logits, [seed, *path])
    assert ties > 10


def count_ties(
    selector: CandidateSelector, hidden: mx.array, logits: mx.array, path: list[int]
) -> int:
    """Rows whose best score belongs to two candidates or more."""
    ties = 0
    for row in range(len(path) - 1):
        candidates = mx.argsort(-logits[0, row])[: selector.top_k]
        pair = selector.predecessor_codebook[path[row]] * selector.hidden_projection(hidden[0, row])
        scores = logits[0, row][candidates] + (pair * selector.successor_codebook[candidates]).sum(
            axis=-1
        )
        ties += int((scores == scores.max()).sum().item()) > 1
    return ties


def test_equal_logits_at_the_border_leave_a_legal_candidate(tmp_path: Path) -> None:
    """All logits equal: any k ids may be the candidates, but they are ids."""
    selector = make_selector(tmp_path, 4)
    hidden, _ = random_rows(BLOCK, 1)
    path = as_ids(selector(hidden, mx.zeros((1, BLOCK, VOCAB)), mx.array([0])))
    assert all(0 <= token < VOCAB for token in path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_give_ids_all_the_same(tmp_path: Path, value: float) -> None:
    """A broken drafter may draft nonsense, not crash or leave the vocabulary."""
    selector = make_selector(tmp_path, 4)
    hidden, logits = random_rows(BLOCK, 1)
    for broken in (mx.full(logits.shape, value), mx.where(logits > 0, value, logits)):
        path = as_ids(selector(hidden, broken, mx.array([0])))
        assert len(path) == BLOCK and all(0 <= token < VOCAB for token in path)


def test_scores_are_summed_in_float32(tmp_path: Path) -> None:
    """In bfloat16 a logit of 100 hides a pair score of a quarter."""
    selector = make_selector(tmp_path, 2)
    selector.set_dtype(mx.bfloat16)
    rank = int(selector.predecessor_codebook.shape[1])
    selector.hidden_projection.weight = mx.zeros((rank, HIDDEN), dtype=mx.bfloat16)
    selector.hidden_projection.weight[0, 0] = 1.0
    selector.predecessor_codebook = mx.ones((VOCAB, rank), dtype=mx.bfloat16)
    selector.successor_codebook = mx.zeros((VOCAB, rank), dtype=mx.bfloat16)
    selector.successor_codebook[7, 0] = 0.75
    logits = mx.zeros((1, 1, VOCAB), dtype=mx.bfloat16)
    logits[:, :, 5], logits[:, :, 7] = 100.5, 100.0
    hidden = mx.zeros((1, 1, HIDDEN), dtype=mx.bfloat16)
    assert as_ids(selector(hidden, logits, mx.array([0]))) == [5]
    hidden[:, :, 0] = 1.0
    assert as_ids(selector(hidden, logits, mx.array([0]))) == [7]


def test_a_drafter_uses_its_selector(tmp_path: Path) -> None:
    """Random or dropped codebooks would change the drafts; nothing else would tell."""
    ends = random_ends()
    drafter = make_drafter(tmp_path, ends=ends, output_multiplier=0.02)
    observe_taps(drafter, tap_rows(6))
    anchor = mx.array([5])
    hidden = drafter.block_hidden(anchor, BLOCK - 1)
    logits = drafter.block_logits(hidden)
    drafts = as_ids(drafter.draft(anchor, BLOCK - 1))
    assert drafts == brute_force(drafter.model.candidate_selector, hidden, logits, 5)
    assert drafts != as_ids(mx.argmax(logits[0], axis=-1))
    for side in ("predecessor_codebook", "successor_codebook"):
        kept = drafter.model.candidate_selector[side]
        drafter.model.candidate_selector[side] = kept[::-1]
        assert as_ids(drafter.draft(anchor, BLOCK - 1)) != drafts
        drafter.model.candidate_selector[side] = kept
