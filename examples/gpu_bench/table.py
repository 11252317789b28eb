"""results.json as a Markdown table: python examples/gpu_bench/table.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from results import FILE


def met(row: dict[str, Any]) -> str:
    """yes, no, or nothing where there is no goal."""
    if row["goal"] is None:
        return ""
    value, goal = row["value"], row["goal"]
    return "yes" if (value >= goal if row["better"] == "higher" else value <= goal) else "no"


def table(file: Path = FILE) -> str:
    """Figures with a goal first, then the rest."""
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows = sorted(document["rows"], key=lambda row: (row["goal"] is None, row["id"]))
    lines = ["| id | value | low .. high | goal | met |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        spread = f"{row['low']:.4g} .. {row['high']:.4g}"
        lines.append(f"| `{row['id']}` | {row['value']:.4g} | {spread} | {goal} | {met(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
