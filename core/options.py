"""Defaults, owned by frozen dataclasses; the command's options read them from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from .errors import OptionError
from .sampling_options import SamplingOptions

Speculation = Literal["auto", "dflash", "mtp", "none"]
SPECULATION_VALUES: tuple[Speculation, ...] = get_args(Speculation)
MtpHidden = Literal["post", "pre"]
"""Which hidden rows feed an MTP head: after the target's final norm, or before it."""
MtpNorms = Literal["raw", "shifted"]
MTP_NORMS_VALUES: tuple[MtpNorms, ...] = get_args(MtpNorms)
MTP_HIDDEN_VALUES: tuple[MtpHidden, ...] = get_args(MtpHidden)

Kernels = Literal["auto", "stock", "fused"]
KERNELS_VALUES: tuple[Kernels, ...] = get_args(Kernels)
DEFAULT_KERNELS: Kernels = "auto"
"""auto: fused where they fit, which is a bfloat16 or 4-bit hybrid target on CUDA."""

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DTYPE_NAMES: tuple[DtypeName, ...] = get_args(DtypeName)

DRAFTER_BITS = (4, 8, 16)
DEFAULT_DRAFTER_BITS = 4
"""For a drafter that is not quantized yet; 16 runs it as it is."""

MAX_DRAFT_TOKENS = 6
"""An MTP head is chained for 1 to 6 drafts a round."""
DEFAULT_DRAFT_TOKENS = 3
MAX_DEFAULT_BLOCK = 7
"""The default block is min(trained, 7), that is 6 drafts, where 8 was trained."""


@dataclass(frozen=True)
class LoadOptions:
    """What is loaded, and how it runs. Model references are a directory, a hub id or bundled:NAME.

    model: the target; None is the bundled one.
    drafter: a DFlash drafter, or the folder of an MTP head; None is MODEL/drafter where that
        exists, and the bundled drafter for the bundled target.
    speculation: auto, dflash, mtp or none: which drafters are looked for.
    mtp: the folder of an MTP head; None is the head in the target's own files.
    mtp_hidden: the hidden rows that feed the head: after (post) or before (pre) the final norm.
    mtp_norms: how the head's norm weights are stored, less one (raw) or not (shifted); None: as
    their values tell.
    drafter_bits: 4, 8 or 16 (as its file has it); None is 4 for a DFlash drafter that is not
        quantized yet.
    dtype: compute precision; auto is float32 on the CPU and the checkpoint's own elsewhere.
    kernels: stock, MLX's and mlx-lm's own; fused, the suite's for CUDA; auto, those that fit.
    stored_probe: go by what `dflash doctor --probe` stored of this model on this device.
    exact: True: run by a plan that makes every row independent of the others of its pass,
        measured here, or raise ExactUnavailable. None: measure on the CPU alone, where that costs
        little; elsewhere take a stored plan that costs nothing. False: neither.
    reserve: under auto, load the MTP head beside a DFlash drafter, for the gate to try.
    adapter_path: a folder with a LoRA adapter of mlx-lm's, over the target; stored probes, which
    are of the target alone, are not used then.
    """

    model: str | None = None
    drafter: str | None = None
    speculation: Speculation = "auto"
    mtp: str | None = None
    mtp_hidden: MtpHidden = "post"
    mtp_norms: MtpNorms | None = None
    drafter_bits: int | None = None
    dtype: DtypeName = "auto"
    kernels: Kernels = DEFAULT_KERNELS
    stored_probe: bool = True
    exact: bool | None = None
    reserve: bool = True
    adapter_path: str | None = None

    def __post_init__(self) -> None:
        require_one_of("speculation", self.speculation, SPECULATION_VALUES)
        if self.adapter_path is not None:
            object.__setattr__(self, "stored_probe", False)
        require_one_of("mtp_hidden", self.mtp_hidden, MTP_HIDDEN_VALUES)
        if self.mtp_norms is not None:
            require_one_of("mtp_norms", self.mtp_norms, MTP_NORMS_VALUES)
        require_one_of("dtype", self.dtype, DTYPE_NAMES)
        require_one_of("kernels", self.kernels, KERNELS_VALUES)
        if self.drafter_bits is not None:
            check_drafter_bits(self.drafter_bits)


@dataclass(frozen=True)
class GenerateOptions:
    """How one request is decoded. Sizes are in tokens.

    block_size concerns DFlash drafters alone, draft_tokens the MTP head alone; None is the default
    of either. gate: leave a drafter that costs more time than it saves (core/decode/gate.py).
    """

    max_tokens: int = 256
    block_size: int | None = None
    draft_tokens: int | None = None
    gate: bool = True
    prefill_step_size: int = 2048
    stop: tuple[str, ...] = ()
    profile: bool = False
    sampling: SamplingOptions = SamplingOptions()

    @property
    def gated(self) -> bool:
        """Whether the gate runs: a seeded sample must not depend on the clock, so it is off."""
        return self.gate and not self.sampling.repeatable

    def __post_init__(self) -> None:
        require_positive("max_tokens", self.max_tokens)
        require_positive("prefill_step_size", self.prefill_step_size)
        if self.block_size is not None and self.block_size < 2:
            raise OptionError(
                f"block_size {self.block_size} leaves no room for a draft: a block is the last "
                "token and at least one draft, so give 2 or more"
            )
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise OptionError(
                f"draft_tokens is {self.draft_tokens}, expected 1..{MAX_DRAFT_TOKENS}"
            )
        if any(not text for text in self.stop):
            raise OptionError("an empty stop string would end every answer at once; leave it out")


@dataclass(frozen=True)
class ChatOptions:
    """What a chat has beside or otherwise than a single request.

    max_tokens: most tokens of an answer; hide_reasoning: thoughts are not shown.
    """

    max_tokens: int = 512
    hide_reasoning: bool = False


GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class QuantizeOptions:
    """How a drafter's projections are packed: MLX affine quantization along the input axis.

    bits: 4 or 8 a weight; group_size: weights that share one scale and one bias.
    """

    bits: int = DEFAULT_DRAFTER_BITS
    group_size: int = 64

    def __post_init__(self) -> None:
        if self.bits not in DRAFTER_BITS[:-1]:
            raise OptionError(f"bits must be 4 or 8, got {self.bits}")
        if self.group_size not in GROUP_SIZES:
            raise OptionError(f"group_size must be 32, 64 or 128, got {self.group_size}")

    @property
    def label(self) -> str:
        """For file names: int4-g64."""
        return f"int{self.bits}-g{self.group_size}"


@dataclass(frozen=True)
class CheckOptions:
    """How much `quantize --check` decodes where no prompts are given."""

    prompts: int = 8
    max_tokens: int = 64


def check_drafter_bits(bits: int) -> int:
    """4, 8 or 16; anything else is an OptionError."""
    if bits not in DRAFTER_BITS:
        raise OptionError(f"drafter_bits must be 4, 8 or 16, got {bits}")
    return bits


def require_positive(name: str, value: int) -> None:
    """Raise OptionError unless `value` is a positive count."""
    if value < 1:
        raise OptionError(f"{name} must be at least 1, got {value}")


def require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise OptionError unless `value` is one of the `known` ones."""
    if value not in known:
        raise OptionError(f"{name} '{value}' is unknown (expected {'|'.join(known)})")


def parse_kernels(text: str) -> Kernels:
    """auto, stock or fused, trimmed and lower-cased."""
    value = text.strip().lower()
    require_one_of("kernels", value, KERNELS_VALUES)
    return cast(Kernels, value)


def parse_dtype(text: str) -> DtypeName:
    """auto, float32, bfloat16 or float16, as it stands."""
    require_one_of("dtype", text, DTYPE_NAMES)
    return cast(DtypeName, text)


def parse_speculation(text: str | None) -> Speculation:
    """Trimmed and lower-cased; absent or empty is auto, `off` is none."""
    value = (text or "").strip().lower() or "auto"
    value = "none" if value == "off" else value
    if value not in SPECULATION_VALUES:
        expected = "|".join(SPECULATION_VALUES)
        raise OptionError(f"invalid 'speculation' value '{text}' (expected {expected})")
    return value


def parse_mtp_hidden(text: str) -> MtpHidden:
    """Trimmed and lower-cased; OptionError for anything but post and pre."""
    value = text.strip().lower()
    if value not in MTP_HIDDEN_VALUES:
        expected = "|".join(MTP_HIDDEN_VALUES)
        raise OptionError(f"invalid 'mtp-hidden' value '{text}' (expected {expected})")
    return value


def parse_mtp_norms(text: str | None) -> MtpNorms | None:
    """Trimmed and lower-cased; OptionError for anything but raw and shifted."""
    if text is None:
        return None
    value = text.strip().lower()
    require_one_of("mtp-norms", value, MTP_NORMS_VALUES)
    return cast(MtpNorms, value)
