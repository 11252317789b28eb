"""Text for people: footers, tables, diagnoses, progress.

May import: core's, drafters' and the doctor's results.
Used by: `commands` and `export`.
"""
