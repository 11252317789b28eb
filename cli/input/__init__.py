"""Prompts and files of prompts, as ids.

May import: core and drafters.
Used by: `commands`.
"""
