"""Scripts that run for minutes, and are not part of `make test`.

May import: the suite and `tests.kit`.
Used by: people, before a release.
"""
