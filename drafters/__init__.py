"""Drafters (DFlash, DFlash2, MTP heads), how they pair with a target, and the engine over both.

May import: core.
Used by: doctor and cli.
"""
