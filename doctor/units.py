"""Sizes as people read them."""

from __future__ import annotations


def readable(size_bytes: float) -> str:
    """54.65 GB, 16.0 MB; decimal units, as disks and hubs count."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"
