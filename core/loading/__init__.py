"""A target from a directory: weights and tokenizer, checked, cast, and put on kernels.

May import: `checkpoint`, `target` and, for fused kernels, `cuda`.
Used by: drafters, the doctor and benchmarks.
"""
