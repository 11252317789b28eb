"""The run that figures share: one model, every context asked for, what is on file left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models import make_model
from results import Row, known_ids, merge
from setting import Arguments, parse


def measure_contexts(
    doc: str | None, last_row: str, measure: Callable[[Arguments, Any, int, str], list[Row]]
) -> None:
    """Merge the rows of `measure(given, model, context, case)` into the file, context by context.

    doc: the script's docstring; last_row: the beginning of the id of a case's last row, by which
    a case is known to be done.
    """
    given = parse(doc or "")
    case = f"{given.shape}-{given.precision}"
    known = known_ids(given.file)
    todo = [c for c in given.contexts if given.force or f"{last_row}-{case}-{c}" not in known]
    if not todo:
        return
    model = make_model(given.shape, given.precision)
    for context in todo:
        merge(given.file, measure(given, model, context, f"{case}-{context}"))
