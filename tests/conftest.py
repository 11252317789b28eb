"""Shared fixtures: the bundled pair, loaded once, and what stock mlx-lm says of it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.options import LoadOptions
from dflash_suite.drafters.bundled.paths import PROMPTS_FILE
from dflash_suite.drafters.mtp.drafter import MtpDrafter
from dflash_suite.drafters.mtp.find import find_head
from dflash_suite.drafters.mtp.load import load_head
from dflash_suite.drafters.pair import Pair, load_pair
from tests.kit.cuda_on_cpu import COMPILER, CudaOnCpu, emulate
from tests.kit.places import ROOT
from tests.kit.tiny import stock_greedy

CACHE = tempfile.TemporaryDirectory(prefix="dflash-tests-")
"""In place of the user's cache directory, for this process and those that it starts."""


LONGEST_FIRST = (
    "cli/test_cli_generate.py",
    "core/exact/test_exact.py",
    "doctor/probe/test_doctor_probe.py",
    "drafters/dflash/test_cuda_draft.py",
    "core/cuda/test_cuda_on_cpu.py",
    "drafters/test_engine.py",
    "test_planted_faults.py",
    "core/cuda/test_cuda_joined.py",
    "core/decode/test_bundled_identity.py",
    "core/target/test_families.py",
    "core/exact/test_promise.py",
    "core/decode/test_route_switching.py",
    "core/decode/test_identity.py",
    "cli/test_cli_bench.py",
    "drafters/mtp/test_mtp.py",
    "doctor/test_doctor_agrees.py",
    "cli/test_cli_exact.py",
    "cli/test_cli_chat.py",
    "core/bench/test_bench_run.py",
    "core/decode/test_sampling.py",
    "doctor/test_doctor_hub.py",
)
"""Files that take more than some ten seconds, by their time: workers that begin with these end
together. Those that are not named follow in the order of their names."""


def pytest_configure() -> None:
    """Before any test module copies the environment, and before workers are started."""
    os.environ["XDG_CACHE_HOME"] = CACHE.name
    os.environ["XDG_CONFIG_HOME"] = CACHE.name
    for name in [name for name in os.environ if name.startswith("DFLASH_")]:
        del os.environ[name]
    if sys.dont_write_bytecode:  # each process that a test starts would compile all modules anew
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(CACHE.name) / "bytecode")


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    CACHE.cleanup()


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; within a file nothing moves. Cases that a `thinned` test leaves to
    `make long` are marked `long`."""
    seen = Counter[tuple[Path, str]]()
    for item in items:
        thinned = item.get_closest_marker("thinned")
        if thinned is not None and isinstance(item, pytest.Function):
            case = (item.path, item.originalname)
            if seen[case] % thinned.args[0]:
                item.add_marker("long")
            seen[case] += 1
    rank = {str(ROOT / "tests" / name): index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(str(item.path), len(rank)))


PlainReference = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="session")
def bundled_pairs() -> Mapping[str, Pair]:
    """The bundled pair in float32 with each of its drafters, `dflash` and `dflash2`, at 16 bits."""
    names = ("dflash", "dflash2")
    return {
        name: load_pair(
            LoadOptions(
                drafter=f"bundled:{name}",
                speculation="dflash",
                dtype="float32",
                drafter_bits=16,
                exact=False,
            )
        )
        for name in names
    }


@pytest.fixture(scope="session")
def bundled_pair(bundled_pairs: Mapping[str, Pair]) -> Pair:
    """The bundled target with its default drafter."""
    return bundled_pairs["dflash2"]


@pytest.fixture(scope="session")
def bundled_mtp(bundled_pair: Pair) -> MtpDrafter:
    """The bundled target's own MTP head, in float32."""
    source = find_head(bundled_pair.target.config)
    assert source is not None
    return load_head(source, bundled_pair.target, mx.float32)


@pytest.fixture(scope="session")
def bundled_target(bundled_pair: Pair) -> LoadedTarget:
    """The bundled target and tokenizer, in float32."""
    return LoadedTarget(bundled_pair.target, bundled_pair.tokenizer)


@pytest.fixture(scope="session")
def bundled_prompts() -> list[dict[str, Any]]:
    """The lines of the bundled prompts.jsonl."""
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


@pytest.fixture(scope="session")
def plain_reference(bundled_target: LoadedTarget) -> PlainReference:
    """(prompt ids, count) -> greedy ids of the bundled target by mlx-lm's own generate_step,
    which knows no eos; each request is decoded once a session."""
    known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def reference(prompt_ids: list[int], count: int) -> list[int]:
        key = (tuple(prompt_ids), count)
        if key not in known:
            known[key] = stock_greedy(bundled_target.target.backbone.model, prompt_ids, count)
        return known[key]

    return reference


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaOnCpu]:
    """The CUDA kernels' text on a CPU; what is compiled is shared by all processes of a session."""
    if COMPILER is None:
        pytest.skip("needs g++ to stand for nvcc")
    own = tmp_path_factory.getbasetemp()
    yield from emulate((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernels")
