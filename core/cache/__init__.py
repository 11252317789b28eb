"""A target's caches: their kinds, and the ways to go back in one.

May import: core's errors and device.
Used by: targets, the decode loop, the exact plans, the kernels and measurements.
"""
