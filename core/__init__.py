"""The shared core: target, taps, tape, rollback and the one decode loop.

Knows a drafter only as the Protocol in `drafter.py`, and prints nothing.
"""
