"""A DFlash or DFlash2 draft in few launches on CUDA.

May import: `core.cuda`, and a drafter's config, context and layers.
Used by: the drafter itself.
"""
