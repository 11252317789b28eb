"""Tests, one folder for each package of the suite.

May import: the whole suite.
Used by: `make test`.
"""
