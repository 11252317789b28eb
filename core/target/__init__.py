"""A loaded target: its forward with taps and tape, and the table of families.

May import: `checkpoint` and `cache`.
Used by: the decode loop, drafters, and whoever loads a model.
"""
