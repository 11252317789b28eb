"""`dflash doctor --list-probes` and `--clear-probes`."""

from __future__ import annotations

from ..text.terminal import print_document, print_text

SCHEMA = "dflash.probes/1"


def show_probes(*, clear: bool, as_json: bool) -> None:
    """What is stored, or what was removed."""
    from ...core.probe_store import clear_probes, list_probes

    removed = clear_probes() if clear else []
    entries = list_probes()
    if as_json:
        probes = [{"path": str(one.path), "date": one.date, "of": one.what, "detail": one.detail,
                   "removed": one in removed} for one in (*removed, *entries)]  # fmt: skip
        print_document({"schema": SCHEMA, "probes": probes})
        return
    shown = removed if clear else entries
    lines = [
        line for one in shown for line in (str(one.path), f"  {one.date} {one.what}{one.detail}")
    ]
    done = f"removed {len(removed)}; {len(entries)} kept" if clear else ""
    print_text("\n".join([*lines, *([done] if done else [])]) or "no stored probes")
