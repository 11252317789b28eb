"""Slabs: a drafter's projections packed once at 4 or 8 bits, kept on disk, checked at every open.

May import: core and `dflash`.
Used by: pairs, `dflash quantize` and the doctor.
"""
