"""The drafts of both drafters, round by round, against the upstream reference (PyPI `dflash`).

The reference runs in a process of its own. Skipped only where the registry cannot be reached.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.stats import Chunk
from dflash_suite.drafters.bundled.paths import ROOT
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.pair import Pair
from tests.kit.decoding import generate
from tests.kit.places import KIT
from tests.kit.tiny import as_ids
from tests.kit.tiny_drafter import Recorder

pytestmark = pytest.mark.long
"""Installing the reference takes most of the time. `core/decode/test_bundled_identity.py` holds the
accept lengths that it had with the same pair."""
REFERENCE = "dflash==0.1.0"
DRAFTERS = ("dflash", "dflash2")
PROMPTS = ("hand-1", "hand-3", "held-code-13 continued")
"""Names in prompts.jsonl; `continued` takes the plain ids into the prompt, 264 rows in all, so
that DFlash2's window of 256 has to slide from the prefill on (see upstream_runner.InOrderCache)."""
MAX_TOKENS = 50
BLOCK_SIZE = 8
UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError"
    r"|Failed to establish a new connection|Temporary failure in name resolution"
    r"|Connection (?:refused|reset|aborted)|Network is unreachable|SSLError"
    r"|HTTP error 5\d\d|5\d\d Server Error",
)
"""What pip says of a registry that it cannot get at."""


def unreachable(output: str) -> str | None:
    """The line of pip's output by which the registry cannot be reached, if there is one."""
    return next((line for line in output.splitlines() if UNREACHABLE.search(line)), None)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the reference and none of its dependencies."""
    directory = tmp_path_factory.mktemp("upstream")
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    limits = ["--retries", "1", "--timeout", "20", "--no-deps", "--target", str(directory)]
    done = subprocess.run([*pip, *limits, REFERENCE], capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    if done.returncode != 0 and (line := unreachable(output)):
        pytest.skip(f"the package registry cannot be reached, so no {REFERENCE}: {line.strip()}")
    assert done.returncode == 0, output
    return directory


@pytest.fixture(scope="session")
def prompts(bundled_prompts: list[dict[str, Any]]) -> list[list[int]]:
    records = {record["name"]: record for record in bundled_prompts}
    found: list[list[int]] = []
    for label in PROMPTS:
        name, *continued = label.split()
        record = records[name]
        found.append(record["prompt_ids"] + (record["plain_ids"] if continued else []))
    assert max(len(ids) for ids in found) > 256
    return found


@pytest.fixture(scope="session")
def upstream(
    reference: Path, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """By drafter: for each prompt the tokens, and the drafts of each round."""
    directory = tmp_path_factory.mktemp("upstream_run")
    request, response = directory / "request.json", directory / "response.json"
    content = {
        "target": str(ROOT / "target"),
        "drafters": [str(ROOT / name) for name in DRAFTERS],
        "prompts": [
            {"ids": ids, "in_order": len(label.split()) > 1}
            for label, ids in zip(PROMPTS, prompts, strict=True)
        ],
        "max_tokens": MAX_TOKENS,
        "block_size": BLOCK_SIZE,
    }
    request.write_text(json.dumps(content), encoding="utf-8")
    runner = KIT / "upstream_runner.py"
    environment = {**os.environ, "PYTHONPATH": str(reference), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(runner), str(request), str(response)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(response.read_text(encoding="utf-8"))
    return dict(zip(DRAFTERS, answers, strict=True))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("index", range(len(PROMPTS)), ids=PROMPTS)
def test_every_round_drafts_what_the_reference_drafts(
    bundled_pairs: Mapping[str, Pair],
    upstream: dict[str, list[dict[str, Any]]],
    prompts: list[list[int]],
    name: str,
    index: int,
) -> None:
    pair = bundled_pairs[name]
    assert isinstance(pair.drafter, DFlashDrafter)
    recorder = Recorder(pair.drafter)
    options = GenerateOptions(max_tokens=MAX_TOKENS, block_size=BLOCK_SIZE, gate=False)
    run = generate(replace(pair, drafter=recorder), prompts[index], options)
    tokens = [token for event in run if isinstance(event, Chunk) for token in event.token_ids]
    drafts = [as_ids(round_drafts) for round_drafts in recorder.drafts]
    expected = upstream[name][index]
    assert tokens == expected["tokens"] and len(tokens) == MAX_TOKENS
    assert drafts == expected["drafts"] and len(drafts) == run.stats.rounds > 10
    assert {len(round_drafts) for round_drafts in drafts[:10]} == {BLOCK_SIZE - 1}
    assert 0 < run.stats.accepted < run.stats.drafted
    assert len({token for round_drafts in drafts for token in round_drafts}) > 20


def test_only_a_registry_out_of_reach_is_a_reason_to_skip() -> None:
    offline = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(\"<...>"
        ": Failed to establish a new connection: [Errno -2] Name or service not known\")'\n"
        "ERROR: Could not find a version that satisfies the requirement dflash==0.1.0 (from "
        "versions: none)"
    )
    assert unreachable(offline) == offline.splitlines()[0]
    gone = "ERROR: No matching distribution found for dflash==0.1.0 (from versions: 0.2.0)"
    for other in (gone, "ERROR: Permission denied", "No module named pip", ""):
        assert unreachable(other) is None
