"""Where the repository, its sources and its data for tests are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE_ROOT = ROOT / ".src"
KIT = ROOT / "tests" / "kit"
CONFIGS = ROOT / "tests" / "data" / "configs"
"""Published config.json files and tensor lists."""
GPU_BENCH = ROOT / "examples" / "gpu_bench"
