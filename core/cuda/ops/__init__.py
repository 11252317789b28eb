"""Operations of a decoder as steps of a launch, with their reference in MLX's own operations.

May import: `runtime` and `target`.
Used by: the decoder, and the drafters' kernels.
"""
