"""Faults that the tests have to find: each is planted in the real code, and a named test must fail.

A row says what is wrong, how it is planted (`plants.py`), and which test finds it.
`tests/test_planted_faults.py` runs each of these tests with its fault and without;
`tests/README.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit import plants
from tests.kit.plants import Plant


@dataclass(frozen=True)
class PlantedFault:
    """One fault and the test that finds it.

    name: what is wrong, in words; plant: puts it in place until the patch is undone; test:
    `path::function` of the test that must fail; arguments: those of its parameters that are not
    fixtures; needs_compiler: the test runs the CUDA kernels' text, for which it takes g++.
    """

    name: str
    plant: Plant
    test: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs_compiler: bool = False


PROPOSALS = (
    "tests/drafters/test_proposals.py::test_drafts_are_drawn_from_the_distribution_that_is_reported"
)
HISTORY = "tests/core/decode/test_history.py::test_every_row_is_judged_with_all_tokens_before_it"
KEYS = "tests/core/decode/test_keys.py::test_no_key_is_used_twice"
HIDDEN_ROWS = "tests/drafters/mtp/test_hidden_rows.py::test_a_head_is_fed_the_rows_of_its_kind"
LIVE_MASK = (
    "tests/drafters/dflash/test_live_rows.py::test_a_mask_over_a_whole_buffer_shows_what_is_live"
)
LIVE_ROWS = (
    "tests/drafters/dflash/test_live_rows.py::test_a_draft_on_cuda_attends_to_every_context_row"
)
FUSED_ROWS = (
    "tests/drafters/dflash/test_cuda_draft.py::"
    "test_a_draft_attends_to_all_of_its_context_and_to_nothing_else"
)
BOOKMARKS = "tests/core/cache/test_bookmarks.py::test_a_bookmark_survives_whatever_is_fed_after_it"
INTERVAL = "tests/core/bench/test_bootstrap.py::test_the_interval_is_at_99_percent"
CHUNKS = (
    "tests/core/decode/test_memory.py::"
    "test_buffers_are_given_back_after_each_chunk_and_every_few_tokens"
)
LONG_ANSWER = (
    "tests/core/decode/test_memory.py::"
    "test_a_long_answer_gives_buffers_back_as_often_as_mlx_lm_does"
)


def proposal_faults() -> Iterator[PlantedFault]:
    """A drafter reports another distribution than the one that it draws from."""
    cold = {"options": "cold"}
    for kind in ("dflash", "mtp"):
        yield PlantedFault(
            f"{kind} reports q without the temperature",
            plants.draws_reported_as(temperature=1.0),
            PROPOSALS,
            {"kind": kind, **cold},
        )
    yield PlantedFault(
        "q is reported without top-k",
        plants.draws_reported_as(top_k=0),
        PROPOSALS,
        {"kind": "dflash", "options": "hot, top-k"},
    )
    yield PlantedFault(
        "q is reported without top-p and min-p",
        plants.draws_reported_as(top_p=1.0, min_p=0.0),
        PROPOSALS,
        {"kind": "mtp", "options": "top-p and min-p"},
    )
    yield PlantedFault(
        "dflash2 reports q without the temperature",
        plants.selector_reports(plants.without_temperature),
        PROPOSALS,
        {"kind": "dflash2", **cold},
    )
    yield PlantedFault(
        "dflash2 reports the probabilities of other candidates",
        plants.selector_reports(plants.for_other_candidates),
        PROPOSALS,
        {"kind": "dflash2", **cold},
    )


def sampling_faults() -> Iterator[PlantedFault]:
    """Penalties see other tokens, or randomness is used twice."""
    rows = {"policy": "mixed", "temperature": 0.0}
    yield PlantedFault(
        "a row's penalties do not see its own token",
        plants.rows_judged_one_token_short,
        HISTORY,
        rows,
    )
    yield PlantedFault(
        "penalties miss the first token", plants.history_without(slice(1, None)), HISTORY, rows
    )
    yield PlantedFault(
        "penalties miss the token before the block",
        plants.history_without(slice(None, -1)),
        HISTORY,
        rows,
    )
    yield PlantedFault(
        "the residual is drawn with the key that accepted",
        plants.one_key_accepts_and_resamples,
        KEYS,
        {"kind": "dflash"},
    )
    yield PlantedFault(
        "every draw has the same key", plants.one_key_for_every_draw, KEYS, {"kind": None}
    )


def drafter_faults() -> Iterator[PlantedFault]:
    """A drafter is fed other rows, or attends to others."""
    pre = {"hidden": "pre"}
    yield PlantedFault(
        "an MTP head of kind pre is shown the rows after the norm",
        plants.pre_head_observes_normed_rows,
        HIDDEN_ROWS,
        pre,
    )
    yield PlantedFault(
        "an MTP head of kind pre goes on from its own row after its norm",
        plants.pre_head_chains_normed_rows,
        HIDDEN_ROWS,
        pre,
    )
    yield PlantedFault(
        "a mask over a whole buffer hides the first row of its context",
        plants.mask_hides_the_first_live_row,
        LIVE_MASK,
    )
    yield PlantedFault(
        "a draft on CUDA attends to one context row too few",
        plants.mask_hides_the_first_live_row,
        LIVE_ROWS,
        {"kind": "dflash"},
    )
    yield PlantedFault(
        "a fused draft misses the oldest context row",
        plants.fused_draft_sees(1, -1),
        FUSED_ROWS,
        needs_compiler=True,
    )
    yield PlantedFault(
        "a fused draft misses the newest context row",
        plants.fused_draft_sees(0, -1),
        FUSED_ROWS,
        needs_compiler=True,
    )


def other_faults() -> Iterator[PlantedFault]:
    """Of caches, figures and memory."""
    for name in ("ring", "sliding"):
        yield PlantedFault(
            f"the bookmark of a {name} cache is not copied",
            plants.ring_is_held_by_reference,
            BOOKMARKS,
            {"name": name},
        )
    yield PlantedFault(
        "a ring goes on in its bookmark after coming back",
        plants.ring_goes_on_in_its_bookmark,
        BOOKMARKS,
        {"name": "ring"},
    )
    yield PlantedFault("an interval of 98 % for 99 %", plants.interval_at(0.98), INTERVAL)
    yield PlantedFault(
        "buffers are never given back while decoding",
        plants.buffers_are_kept_while_decoding,
        CHUNKS,
        {"drafts": False},
    )
    yield PlantedFault(
        "buffers are never given back while decoding, by the interval as it stands",
        plants.buffers_are_kept_while_decoding,
        LONG_ANSWER,
    )
    yield PlantedFault(
        "buffers are never given back in the prefill",
        plants.buffers_are_kept_in_the_prefill,
        CHUNKS,
        {"drafts": True},
    )


FAULTS = (*proposal_faults(), *sampling_faults(), *drafter_faults(), *other_faults())
