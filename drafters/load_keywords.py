"""The keywords of `dflash_suite.load`, typed.

They are the fields of LoadOptions that it has no parameter for; a test holds the two equal.
"""

from __future__ import annotations

from typing import TypedDict

from ..core.options import DtypeName, Kernels, MtpHidden, MtpNorms


class LoadKeywords(TypedDict, total=False):
    """As the fields of LoadOptions of the same names."""

    mtp: str | None
    mtp_hidden: MtpHidden
    mtp_norms: MtpNorms | None
    drafter_bits: int | None
    dtype: DtypeName
    kernels: Kernels
    stored_probe: bool
    exact: bool | None
    reserve: bool
    adapter_path: str | None
