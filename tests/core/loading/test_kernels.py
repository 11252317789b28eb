"""Whose kernels run: the CUDA packages stay out of a process that cannot use them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from dflash_suite.core.device import on_cuda
from dflash_suite.core.errors import OptionError
from dflash_suite.core.loading import kernels
from dflash_suite.core.loading.kernels import put_on_kernels
from tests.kit.places import ROOT
from tests.kit.tiny import make_target

RUN = """
import sys
sys.argv = ["dflash", "generate", "--raw", "def f", "-s", "{speculation}", "-n", "2", "-q"]
from dflash_suite.cli.__main__ import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
print(sorted(name for name in sys.modules if name.startswith("dflash_suite.")), file=sys.stderr)
"""


@pytest.mark.thinned(2)
@pytest.mark.skipif(on_cuda(), reason="where MLX computes on CUDA the kernels are imported")
@pytest.mark.parametrize("speculation", ["none", "dflash"])
def test_no_cuda_module_is_imported_on_a_cpu(speculation: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", RUN.format(speculation=speculation)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".src")},
    )
    assert run.stdout, "an answer came"
    names: list[str] = ast.literal_eval(run.stderr.splitlines()[-1])
    assert "dflash_suite.core.decode.loop" in names
    assert [name for name in names if "cuda" in name.split(".")] == []


def test_stock_and_auto_leave_a_target_alone_where_there_is_no_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "on_cuda", lambda: False)
    target = make_target("hybrid")
    assert put_on_kernels(target, "stock") is target and put_on_kernels(target, "auto") is target
    with pytest.raises(OptionError, match="needs MLX on CUDA and a hybrid target, not qwen3_5"):
        put_on_kernels(target, "fused")


def test_auto_leaves_a_target_alone_that_is_no_hybrid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "on_cuda", lambda: True)
    target = make_target("dense")
    assert put_on_kernels(target, "auto") is target
    with pytest.raises(OptionError, match="not qwen3 on this device"):
        put_on_kernels(target, "fused")
