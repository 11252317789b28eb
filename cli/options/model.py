"""Options that say what is loaded, and how it runs; defaults come from core/options.py."""

from __future__ import annotations

from typing import Annotated

import typer

from ...core.options import MTP_HIDDEN_VALUES, MTP_NORMS_VALUES
from . import panels

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="DIR|HUB_ID",
        help="Target: a directory or a hub id. Omitted: the small bundled target.",
        show_default=False,
        rich_help_panel=panels.MODEL,
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        "-d",
        metavar="DIR|HUB_ID",
        help="DFlash or DFlash2 drafter, or an MTP head's folder. Omitted: MODEL/drafter where it "
        "exists, or the bundled one (bundled:dflash2; bundled:dflash is there too) for the "
        "bundled target.",
        show_default=False,
        rich_help_panel=panels.MODEL,
    ),
]
AdapterPathOption = Annotated[
    str | None,
    typer.Option(
        "--adapter-path",
        metavar="DIR",
        help="A LoRA adapter for the target, as mlx_lm.lora writes it; it runs on MLX's kernels.",
        show_default=False,
        rich_help_panel=panels.MODEL,
    ),
]
SpeculationOption = Annotated[
    str,
    typer.Option(
        "--speculation",
        "-s",
        metavar="MODE",
        help="auto: a DFlash drafter where one can be used, else the target's MTP head, else "
        "plain decoding. dflash, mtp: that or an error. none (or off): plain decoding; no "
        "drafter file is opened.",
        rich_help_panel=panels.SPECULATION,
    ),
]
DrafterBitsOption = Annotated[
    int | None,
    typer.Option(
        "--drafter-bits",
        metavar="4|8|16",
        help="Bits of the drafter's projections: 4 or 8 through its slab, which is made on first "
        "use; 16 as the file has them. Default: 4, or as it is where it is quantized already.",
        show_default=False,
        rich_help_panel=panels.ADVANCED,
    ),
]
MtpOption = Annotated[
    str | None,
    typer.Option(
        "--mtp",
        metavar="DIR|HUB_ID",
        help="MTP head in a folder of its own. Omitted: the one in the target's files.",
        show_default=False,
        rich_help_panel=panels.MODEL,
    ),
]
MtpHiddenOption = Annotated[
    str,
    typer.Option(
        "--mtp-hidden",
        metavar="|".join(MTP_HIDDEN_VALUES),
        help="Hidden rows that feed the MTP head: after or before the target's final norm.",
        rich_help_panel=panels.ADVANCED,
    ),
]
MtpNormsOption = Annotated[
    str | None,
    typer.Option(
        "--mtp-norms",
        metavar="|".join(MTP_NORMS_VALUES),
        help="How the MTP head's norm weights are stored: less one, as in original files, or as "
        "they are used. Omitted: as their values tell.",
        show_default=False,
        rich_help_panel=panels.ADVANCED,
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="TYPE",
        help="Compute precision: float32, bfloat16, float16, or auto, which is float32 on the CPU "
        "and the checkpoint's own elsewhere.",
        rich_help_panel=panels.ADVANCED,
    ),
]
KernelsOption = Annotated[
    str,
    typer.Option(
        "--kernels",
        metavar="WHICH",
        help="fused: the suite's own CUDA kernels, for hybrid targets in bfloat16 or 4 bits. "
        "stock: MLX's own. auto: fused where they fit.",
        rich_help_panel=panels.ADVANCED,
    ),
]
StoredProbeOption = Annotated[
    bool,
    typer.Option(
        "--stored-probe/--no-stored-probe",
        help="Default to the block or -k that dflash doctor --probe found best on this device.",
        rich_help_panel=panels.SPECULATION,
    ),
]
ExactOption = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact",
        help="Run the target so that a row's bits depend on its own past alone, measured on this "
        "device; exit 1 where nothing gives that. Default: as it is, with a short check on the "
        "CPU, or by a stored plan that costs next to nothing.",
        show_default=False,
        rich_help_panel=panels.SPECULATION,
    ),
]
