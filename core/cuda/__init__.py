"""A hybrid target on NVIDIA GPUs: few rows of a pass in few launches of the suite's own kernels.

May import: `cache` and `target`.
Used by: `loading`, and drafters that run on the same kernels.
"""
