"""The one decode loop, and its steps: prefill, draft, verify, accept, roll back.

May import: `answer`, `cache` and `target`.
Used by: drafters, benchmarks and the engine.
"""
