"""The shared core: checkpoints, caches, targets, the one decode loop, exactness, CUDA kernels.

May import: nothing of drafters, doctor or cli; it knows a drafter only as a Protocol.
Used by: every other package.
"""
