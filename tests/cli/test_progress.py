"""The line that says how far a long prompt is."""

from __future__ import annotations

import pytest

from dflash_suite.cli.text.progress import LONG_PREFILL_TOKENS, Progress
from tests.kit.gate_sim import Clock

pytestmark = pytest.mark.quick


def test_a_long_prompt_says_how_far_it_is_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10 tokens a second, of which 1,000 were there before from an earlier request."""
    clock, said = Clock(), list[str]()
    progress = Progress(enabled=True, clock=clock)
    monkeypatch.setattr(progress, "say", said.append)
    for done in (1000, 1256, 4000):
        progress.prefill(done, 4000)
        clock.now += 25.6
    assert said == [
        "prefill 1,000 of 4,000 tokens (25%)",
        "prefill 1,256 of 4,000 tokens (31%, about 274 s left)",
        "prefill 4,000 of 4,000 tokens (100%)",
    ]


def test_a_short_prompt_and_a_pipe_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(enabled=True)
    progress.prefill(0, LONG_PREFILL_TOKENS - 1)
    progress.prefill(0, 10**6)  # stderr is no terminal here
    assert capsys.readouterr() == ("", "")
