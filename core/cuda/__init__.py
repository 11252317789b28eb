"""Fused kernels for CUDA, where mlx-lm steps the recurrence token by token and narrow matmuls cost
several times what reading their weights costs. `ops.py` says the same in plain MLX operations.
"""
