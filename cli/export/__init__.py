"""Documents and pictures for machines and reports.

May import: `text` and core's results.
Used by: `commands`.
"""
