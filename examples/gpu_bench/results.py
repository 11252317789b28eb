"""Rows of results.json: merged by id, so that every command can be run again or alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Literal

import mlx.core as mx

FILE = Path(__file__).resolve().parent / "results.json"
Better = Literal["lower", "higher"]
PACKAGES = ("mlx", "mlx-cuda-13", "mlx-lm")


@dataclass(frozen=True)
class Row:
    """One figure: `value` as its goal states it, 10th and 90th percentile, the goal or None.

    better: whether `lower` or `higher` values are.
    """

    id: str
    value: float
    low: float
    high: float
    goal: float | None = None
    better: Better = "lower"


def summarize(
    id: str, samples: Sequence[float], goal: float | None = None, better: Better = "lower"
) -> Row:
    """The median of the samples with its 10th and 90th percentile."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Row(
        id,
        round(median(ordered), 4),
        round(ordered[round(0.1 * last)], 4),
        round(ordered[round(0.9 * last)], 4),
        goal,
        better,
    )


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Pairwise ratios of two interleaved series."""
    return [a / b for a, b in zip(over, under, strict=True)]


def known_ids(file: Path) -> set[str]:
    """Ids that are in the file already."""
    return {row["id"] for row in _read(file).get("rows", [])}


def merge(file: Path, rows: Sequence[Row]) -> None:
    """Put rows into the file, replacing those of the same id; device, versions: this run's.

    measured_at: by commit, the ids of the rows that it gave, where that is not `commit`.
    """
    held = _read(file)
    merged = {row["id"]: row for row in held.get("rows", [])}
    merged.update({row.id: asdict(row) for row in rows})
    now = commit() or held.get("commit")
    document = {
        "device": device_name(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": now,
        "measured_at": _origins(held, now, {row.id for row in rows}),
        "rows": [merged[id] for id in sorted(merged)],
    }
    text = json.dumps(document, indent=1) + "\n"
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
    for row in rows:
        goal = "" if row.goal is None else f"  goal {row.goal}"
        print(f"{row.id:28} {row.value:9.4f}  ({row.low:.4f} .. {row.high:.4f}){goal}", flush=True)


def _origins(held: dict[str, Any], now: str | None, new: set[str]) -> dict[str, list[str]]:
    origins: dict[str, list[str]] = dict(held.get("measured_at", {}))
    named = {id for ids in origins.values() for id in ids}
    rest = {row["id"] for row in held.get("rows", [])} - named
    if held.get("commit") is not None:
        origins[held["commit"]] = sorted({*origins.get(held["commit"], []), *rest})
    kept = {one: [id for id in ids if id not in new] for one, ids in origins.items() if one != now}
    return {one: ids for one, ids in kept.items() if ids}


def device_name() -> str:
    """The GPU's name, or that this is no GPU."""
    info: dict[str, Any] = mx.device_info()
    return str(info.get("device_name", "unknown"))


def commit() -> str | None:
    """The checkout's commit, with + where files differ from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip() or None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    held: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return held
