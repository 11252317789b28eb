"""A target's caches: what is known of each class of them, and the one way back to a place.

May import: core's errors and device.
Used by: targets, the decode loop, the exact plans, the kernels and measurements.
"""
