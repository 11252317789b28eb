"""The checks of a machine, a target, a drafter and a pair: one function each, no weights read.

May import: core, drafters, and the doctor's results.
Used by: `diagnose`.
"""
