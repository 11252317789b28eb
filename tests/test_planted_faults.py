"""Each planted fault makes its named test fail, and without the fault that test passes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.cuda_on_cpu import COMPILER
from tests.kit.places import ROOT
from tests.kit.planted_faults import FAULTS, PlantedFault

MADE_ANEW = ("monkeypatch", "tmp_path")
"""Fixtures of which each of the two runs of a test gets its own."""

PASSED: set[tuple[str, str]] = set()
"""Tests, with their arguments, that were seen to pass without a fault."""


def named_test(fault: PlantedFault) -> Callable[..., None]:
    """The test function that has to find a fault."""
    path, function = fault.test.split("::")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    found: Callable[..., None] = getattr(module, function)
    return found


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(
    fault: PlantedFault, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if fault.needs_compiler and COMPILER is None:
        pytest.skip("needs g++ to stand for nvcc")
    test = named_test(fault)
    wanted = [name for name in inspect.signature(test).parameters if name not in fault.arguments]
    shared = {name: request.getfixturevalue(name) for name in wanted if name not in MADE_ANEW}

    def run(patch: pytest.MonkeyPatch) -> None:
        own: dict[str, Any] = {"monkeypatch": patch}
        if "tmp_path" in wanted:
            own["tmp_path"] = tmp_path_factory.mktemp("planted")
        given = {name: value for name, value in own.items() if name in wanted}
        test(**fault.arguments, **shared, **given)

    check = (fault.test, repr(fault.arguments))
    if check not in PASSED:
        with pytest.MonkeyPatch.context() as patch:
            run(patch)
        PASSED.add(check)
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        with pytest.raises(AssertionError):
            run(patch)


def test_the_readme_lists_every_fault_with_its_test() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for fault in FAULTS:
        path, function = fault.test.split("::")
        row = next((row for row in rows if fault.name in row), None)
        assert row is not None, f"{fault.name} is not in the table"
        assert path.removeprefix("tests/") in row and function in row, row
