"""Published pairs, as sparse files of true size: no failure, no warning, quickly and in little
memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.doctor.results import Diagnosis
from tests.kit import sparse
from tests.kit.doctor_pairs import look, troubles
from tests.kit.places import ROOT
from tests.kit.published import Tensors, published_config, save_published


@dataclass(frozen=True)
class TruePair:
    """Names of published files; shards: of the target."""

    target: str
    drafter: str
    shards: int = 1

    def save(self, directory: Path) -> Path:
        """The target, with the drafter in its `drafter` folder."""
        raw = published_config(self.target)
        form = "mlx" if "quantization" in raw else "pt"
        sparse.save_target(directory, raw, self._tensors(raw), self.shards, form)
        save_published(directory / "drafter", self.drafter)
        return directory

    def _tensors(self, raw: dict[str, Any]) -> Tensors:
        if "quantization" in raw:
            return sparse.converted_tensors(raw)
        if raw["model_type"] == "qwen3":
            return sparse.qwen3_tensors(raw)
        return sparse.qwen35_tensors(raw)


BIG = TruePair("target.Qwen3.5-27B", "Qwen3.8-27B-DFlash2", 11)
PAIRS = [
    TruePair("target.Qwen3-4B", "Qwen3-4B-DFlash-b16", shards=3),
    TruePair("target.Qwen3-8B", "Qwen3-8B-DFlash-b16", shards=5),
    TruePair("target.Qwen3.5-4B", "Qwen3.5-4B-DFlash.genA", 2),
    TruePair("target.Qwen3.5-4B", "Qwen3.5-4B-DFlash.genB", 2),
    TruePair("target.Qwen3.5-9B", "Qwen3.5-9B-DFlash.genA", 4),
    TruePair("target.Qwen3.5-9B", "Qwen3.5-9B-DFlash.genB", 4),
    TruePair("target.Qwen3.5-27B", "Qwen3.5-27B-DFlash.genA", 11),
    BIG,
    TruePair("target.mlx-community.Qwen3.8-27B-4bit", "Qwen3.8-27B-DFlash2", shards=3),
    TruePair("target.mlx-community.Qwen3.8-27B-4bit", "Qwen3.8-27B-DFlash2-4bit.mlx", shards=3),
    TruePair("target.mlx-community.Qwen3.8-27B-4bit", "Qwen3.6-27B-DFlash", shards=3),
    TruePair("target.mlx-community.Qwen3.6-35B-A3B-4bit", "Qwen3.5-35B-A3B-DFlash.genA", shards=4),
    TruePair("target.mlx-community.Qwen3.6-35B-A3B-4bit", "Qwen3.6-35B-A3B-DFlash.genB", shards=4),
]


def check_clean(diagnosis: Diagnosis) -> None:
    """No finding but passes, everything reached, and a drafter's route."""
    assert {name: check.found for name, check in troubles(diagnosis).items()} == {}
    assert not diagnosis.not_reached
    routes = {route.requested: route.route for route in diagnosis.routes}
    assert routes["auto"] == routes["dflash"] in ("dflash", "dflash2")
    assert routes["none"] == "none"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.target}+{pair.drafter}")
def test_a_published_pair_is_clean(pair: TruePair, tmp_path: Path) -> None:
    check_clean(look(pair.save(tmp_path)))


def test_the_files_are_of_true_size(tmp_path: Path) -> None:
    """As published: 54 GB of target in few kilobytes of disk, and a 3.85 GB drafter."""
    BIG.save(tmp_path)
    files = list(tmp_path.rglob("*.safetensors"))
    sizes = [file.stat().st_size for file in files]
    assert 54e9 < sum(sizes) - 3.85e9 < 56e9
    assert sum(file.stat().st_blocks * 512 for file in files) < 5e6
    assert (tmp_path / "drafter" / "model.safetensors").stat().st_size // 10**6 == 3848
    assert read_target_config(tmp_path).eos_ids == {248044, 248046}


def test_a_large_checkpoint_is_read_by_its_headers(tmp_path: Path) -> None:
    """No tensor data: at most 400 MB, most of it transformers, which opens the tokenizer."""
    BIG.save(tmp_path)
    code = (
        "import json, sys\n"
        "from dflash_suite.doctor.diagnose import diagnose\n"
        "from dflash_suite.doctor.checks.machine import read_machine\n"
        "found = diagnose(sys.argv[1], None, read_machine())\n"
        "banned = {'torch'}\n"
        "heavy = sorted(banned & set(sys.modules))\n"
        # Not ru_maxrss: on Linux that begins with the size of the process that forked this one.
        "from pathlib import Path\n"
        "import resource\n"
        "status = Path('/proc/self/status')\n"
        "lines = status.read_text().splitlines() if status.exists() else []\n"
        "high = [int(line.split()[1]) for line in lines if line.startswith('VmHWM')]\n"
        "peak = high[0] if high else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps([found.count('fail'), heavy, peak]))\n"
    )
    root = ROOT
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(root / ".src")},
    )  # fmt: skip
    failures, heavy, peak = json.loads(run.stdout)
    assert failures == 0 and heavy == []
    unit = 1 if sys.platform == "darwin" else 1024
    assert peak * unit < 400_000_000
