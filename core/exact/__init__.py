"""Exactness: does a row depend on its own past alone, and the plan by which it does.

May import: `cache`, `target`, `decode` and the store of probes.
Used by: loading of a pair, the doctor's probe.
"""
