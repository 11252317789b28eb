"""A benchmark for machines and documents: JSON, CSV (a row an answer), Markdown. Stdout only."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from typing import Any

from ...core.bench.report import BenchReport, sample_dict
from ...core.bench.sweep import Best
from ..text.bench import format_findings, format_head
from ..text.bench_tables import Table, letter, make_tables
from ..text.terminal import escaped, print_document, print_text

SCHEMA = "dflash.bench/1"


def print_json(context: Mapping[str, Any], report: BenchReport, best: Best | None) -> None:
    """One document; figures that do not exist are null, never NaN."""
    document = {
        "schema": SCHEMA,
        **context,
        **report.to_dict(),
        "best": best.to_dict() if best else None,
    }
    print_document(document)


def print_csv(report: BenchReport) -> None:
    """Every measured answer, of interrupted groups too; lists as numbers with spaces between."""
    writer: Any = None
    for index, arm in enumerate(report.arms):
        for sample in arm.samples:
            prompt = report.prompts[sample.prompt]
            facts = sample_dict(sample)
            facts.pop("prompt")
            row = {
                "arm": letter(index),
                "name": arm.arm.name,
                "prompt": prompt.name,
                "kind": prompt.kind,
                "degenerate": int(sample.prompt in report.degenerate),
                **facts,
            }
            if writer is None:
                writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
                writer.writeheader()
            cells = {key: _cell(value) for key, value in row.items()}
            writer.writerow(cells if not sys.stdout.isatty() else _shown(cells))


def print_markdown(context: Mapping[str, Any], report: BenchReport, best: Best | None) -> None:
    """The tables of the terminal, to paste into a document."""
    print_text("\n".join(f"- {line}" for line in format_head(context, report) if line))
    for table in make_tables(report):
        print_text(markdown_table(table))
    print_text("\n".join(f"- {line}" for line in format_findings(report, best) if line))


def markdown_table(table: Table) -> str:
    """Title, head, alignment, rows, note."""
    rule = [":--" if index in table.words else "--:" for index in range(len(table.columns))]
    head = [
        column.replace("-\n", "").replace("/\n", "/").replace("\n", " ") for column in table.columns
    ]
    lines = [head, rule, *table.rows]
    body = "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines)
    return f"\n**{table.title}**\n\n{body}\n" + (f"\n{table.note}\n" if table.note else "")


def _shown(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Cells for a terminal."""
    texts = {key: value for key, value in cells.items() if isinstance(value, str)}
    return {**cells, **{key: escaped(text) for key, text in texts.items()}}


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else value
