"""Tests, one folder for each package of the suite; run.py runs them on all cores.

May import: the whole suite.
Used by: `make test`.
"""
