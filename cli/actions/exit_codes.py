"""Exit codes that are neither 0 (done), 1 (failed) nor 2 (usage)."""

from __future__ import annotations

CANCELLED_EXIT_CODE = 130
"""Ctrl-C: what was produced until then is kept."""
