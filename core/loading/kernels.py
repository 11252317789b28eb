"""Whose kernels run a loaded target: MLX's, or the suite's own for CUDA.

The one place that imports the CUDA packages, and only where they could be used: nobody who decodes
on a CPU or a Mac pays for them.
"""

from __future__ import annotations

from ..device import on_cuda
from ..errors import OptionError
from ..options import Kernels
from ..target.target import Target


def put_on_kernels(plain: Target, wanted: Kernels) -> Target:
    """The target over the suite's CUDA kernels where they are `wanted` and fit, held to the plain
    one; `auto` takes the plain one where they do not fit, and `fused` is an OptionError there."""
    if wanted == "stock":
        return plain
    fused = _fused(plain, required=wanted == "fused") if on_cuda() else None
    if fused is None and wanted == "fused":
        raise OptionError(
            f"--kernels fused needs MLX on CUDA and a hybrid target, not "
            f"{plain.config.model_type} on this device; leave it out"
        )
    return fused or plain


def _fused(plain: Target, required: bool) -> Target | None:
    """None where the kernels cannot run, or do not fit and are not required."""
    from ..cuda.backbone import fused_backbone
    from ..cuda.check import check_fused

    backbone = fused_backbone(plain.backbone)
    if backbone is None or not (required or backbone.fits):
        return None
    target = Target(backbone, plain.config)
    check_fused(plain, target)
    return target
