"""The run that figures share: one model, every context asked for, what is on file left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from models import make_model
from results import Row, known_ids, merge
from setting import Arguments, parse

Measure = Callable[[Arguments, Any, int, str], list[Row]]
"""(arguments, model, context, case) -> rows."""


def measure_contexts(doc: str | None, last_row: str, measure: Measure) -> None:
    """Merge the rows of `measure(given, model, context, case)` into the file, context by context.

    doc: the script's docstring; last_row: the beginning of the id of a case's last row, by which
    a case is known to be done.
    """
    given = parse(doc or "")
    measure_all(given, [(last_row, measure)])


def measure_all(given: Arguments, figures: Sequence[tuple[str, Measure]]) -> None:
    """Several figures over one model, each as of measure_contexts: (last row, measure)."""
    case = f"{given.shape}-{given.precision}"
    known = known_ids(given.file)
    todo = [
        (context, measure)
        for context in given.contexts
        for last_row, measure in figures
        if given.force or f"{last_row}-{case}-{context}" not in known
    ]
    if not todo:
        return
    model = make_model(given.shape, given.precision)
    for context, measure in todo:
        merge(given.file, measure(given, model, context, f"{case}-{context}"))
