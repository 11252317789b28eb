"""Every drafter draws from the distribution that it reports: without that, sampling with drafts is
not the target's sampling, however right the rule of acceptance is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash_suite.core.decode.choose import Draws
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from tests.kit.chance import critical
from tests.kit.small_vocabulary import KINDS, PROMPT_IDS, VOCAB, DrawingKind, small_pair

DRAWS, COUNT, BINS = 80, 4, 10
OPTIONS: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.5},
    "hot, top-k": {"temperature": 2.0, "top_k": 3},
    "top-p and min-p": {"temperature": 1.2, "top_p": 0.8, "min_p": 0.1},
    "penalties": {
        "temperature": 0.7,
        "repetition_penalty": 1.6,
        "presence_penalty": 1.0,
        "logit_bias": ((2, 3.0),),
    },
}


@dataclass(frozen=True)
class Drawn:
    """DRAWS proposals from one context: ids (draws, COUNT), reported (draws, COUNT, VOCAB)."""

    ids: Any
    reported: Any

    @property
    def chosen(self) -> Any:
        """(draws, COUNT): the probability reported for what was drawn."""
        return np.take_along_axis(self.reported, self.ids[..., None], axis=-1)[..., 0]


def at_the_prompts_end(directory: Path, kind: DrawingKind) -> DFlashDrafter | MtpDrafter:
    """A drafter that has seen the rows of the prompt."""
    target, drafter = small_pair(directory, kind)
    ids = mx.array(PROMPT_IDS)
    result = target.forward_with_taps(ids[None], target.make_cache(), drafter.tap_ids)
    drafter.observe(TargetRows(0, ids, result.taps, result.hidden))
    return drafter


def propose_often(drafter: DFlashDrafter | MtpDrafter, options: SamplingOptions) -> Drawn:
    """The drafter's own `propose`, again and again, each time with fresh randomness."""
    draws, anchor = Draws(options), mx.array([3])
    pairs = []
    for index in range(DRAWS):
        proposal = drafter.propose(anchor, COUNT, draws)
        pairs.append((proposal.ids, proposal.dense(VOCAB)))
        if index % 25 == 0:
            mx.eval(pairs)
    ids, reported = (np.array(mx.stack(list(parts))) for parts in zip(*pairs, strict=True))
    return Drawn(ids, reported.astype(np.float64))


def surprise(drawn: Drawn) -> float:
    """How many standard deviations the log-probability of the draws is from its expectation under
    what was reported. A reported distribution that is too flat or too sharp shows here first."""
    known = np.where(drawn.reported > 0, drawn.reported, 1)
    expected = (drawn.reported * np.log(known)).sum(axis=-1)
    variance = (drawn.reported * np.log(known) ** 2).sum(axis=-1) - expected**2
    found = np.log(drawn.chosen)
    return float((found - expected).sum() / np.sqrt(variance.sum()))


def unevenness(drawn: Drawn) -> float:
    """Chi-square over its critical value of where in the reported distribution, likeliest token
    first, the draws fall: evenly, if they were drawn from it."""
    above = np.where(drawn.reported > drawn.chosen[..., None], drawn.reported, 0).sum(axis=-1)
    place = above + np.random.default_rng(0).random(above.shape) * drawn.chosen
    counts = np.histogram(place, bins=BINS, range=(0, 1))[0]
    expected = place.size / BINS
    return float(((counts - expected) ** 2 / expected).sum()) / critical(BINS - 1)


@pytest.mark.quick
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_drawn_from_the_distribution_that_is_reported(
    kind: DrawingKind, options: str, tmp_path: Path
) -> None:
    drafter = at_the_prompts_end(tmp_path, kind)
    drawn = propose_often(drafter, SamplingOptions(seed=11, **OPTIONS[options]))
    np.testing.assert_allclose(drawn.reported.sum(axis=-1), 1, atol=1e-5)
    assert np.ptp(drawn.reported[:, 0], axis=0).max() < 1e-6, "one context, one distribution"
    assert (drawn.chosen > 0).all(), "a token was drawn that is reported as impossible"
    assert len(np.unique(drawn.ids, axis=0)) > 5, "draws that hardly vary show nothing"
    assert abs(surprise(drawn)) < 5
    assert unevenness(drawn) < 1
