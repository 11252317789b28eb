"""Benchmarks of several arms over the same prompts: order, samples, figures, verdicts.

May import: `target`, `decode` and `exact`.
Used by: the `bench` packages of drafters and cli.
"""
