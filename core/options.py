"""Defaults, owned by frozen dataclasses; the command's options read them from here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from .errors import OptionError
from .sampling_options import SamplingOptions

Speculation = Literal["auto", "dflash", "mtp", "none"]
SPECULATION_VALUES: tuple[Speculation, ...] = get_args(Speculation)
MtpHidden = Literal["post", "pre"]
"""Which hidden rows feed an MTP head: after the target's final norm, or before it."""
MTP_HIDDEN_VALUES: tuple[MtpHidden, ...] = get_args(MtpHidden)

Kernels = Literal["auto", "stock", "fused"]
KERNELS_VALUES: tuple[Kernels, ...] = get_args(Kernels)
DEFAULT_KERNELS: Kernels = "auto"
"""auto: fused where they fit, which is a bfloat16 or 4-bit hybrid target on CUDA."""

MAX_DRAFT_TOKENS = 6
"""R17: an MTP head is chained for 1..6 drafts a round."""
DEFAULT_DRAFT_TOKENS = 3
MAX_DEFAULT_BLOCK = 7
"""R17: the default block is min(trained, 7), that is 6 drafts, where 8 was trained."""


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


DRAFTER_BITS = (4, 8, 16)
DEFAULT_DRAFTER_BITS = 4
"""For a drafter that is not quantized yet; 16 runs it as it is."""
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


def parse_kernels(text: str) -> Kernels:
    """auto, stock or fused, trimmed and lower-cased."""
    value = text.strip().lower()
    if value not in KERNELS_VALUES:
        raise OptionError(f"kernels '{text}' is unknown (expected {'|'.join(KERNELS_VALUES)})")
    return value


def parse_speculation(text: str | None) -> Speculation:
    """R31: trimmed and lower-cased; absent or empty is auto, `off` is none."""
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


@dataclass(frozen=True)
class StoredBlock:
    """The best block of a drafter by a stored probe (core/probe_store.py), and the day of that."""

    rows: int
    date: str


EXACT_SOURCE = "the widest that is exact here"


@dataclass(frozen=True)
class Block:
    """Rows of a verify pass: asked for, trained, and used (1 where there is no drafter).

    `trained` is None where no block was trained: an MTP head is chained. source: who chose the
    number of rows.
    """

    requested: int | None
    trained: int | None
    effective: int
    source: str = ""

    @property
    def draft_tokens(self) -> int:
        """Most drafts a round: the block less its anchor."""
        return self.effective - 1

    def describe(self) -> str:
        """For the footer; empty where nothing is drafted."""
        if self.trained is None:
            chosen = f" ({self.source})" if self.source else ""
            drafts = f", up to {self.draft_tokens} drafts a round{chosen}"
            return drafts if self.draft_tokens else ""
        return f", block {self.effective} of {self.trained} trained ({self.source})"

    def to_dict(self) -> dict[str, int | str | None]:
        """The `block` object of `--json`."""
        return {
            "requested": self.requested,
            "trained": self.trained,
            "effective": self.effective,
            "source": self.source or None,
        }


NO_BLOCK = Block(None, None, 1)
"""A plain step: the anchor alone."""


def resolve_block(trained: int, requested: int | None, stored: StoredBlock | None = None) -> Block:
    """The block that a drafter trained at `trained` rows runs with: the one asked for, else the
    stored probe's, else min(trained, 7).

    Never above the trained size: a block that was trained at 8 gains nothing at 16 (formats.md
    7.1), so asking for more is an error and not a silent cut.
    """
    if requested is not None:
        if requested > trained:
            raise OptionError(
                f"block_size {requested} is above the {trained} that this drafter was trained for; "
                f"give 2..{trained}"
            )
        return Block(requested, trained, requested, "as asked")
    if stored is not None:
        rows = min(trained, stored.rows)
        return Block(None, trained, rows, f"stored probe of {stored.date}")
    default = f"default min(trained, {MAX_DEFAULT_BLOCK})"
    return Block(None, trained, min(trained, MAX_DEFAULT_BLOCK), default)


def resolve_chain(requested: int | None, stored: StoredBlock | None = None) -> Block:
    """The block of an MTP head, which is chained for the drafts that are asked for, else for the
    stored probe's, else for 3."""
    if requested is not None:
        return Block(None, None, requested + 1, "as asked")
    if stored is not None:
        rows = min(MAX_DRAFT_TOKENS + 1, stored.rows)
        return Block(None, None, rows, f"stored probe of {stored.date}")
    return Block(None, None, DEFAULT_DRAFT_TOKENS + 1, "default")


def limit_block(block: Block, widest: int | None) -> Block:
    """A block of at most `widest` rows (None: any): a default is cut, and a size that was asked
    for is an OptionError, since cutting it would answer another question."""
    if widest is None or block.effective <= widest:
        return block
    if block.requested is not None:
        raise OptionError(
            f"block_size {block.requested} is above the exact width of this target on this device, "
            f"{widest} rows: give 2..{widest}, or run with --no-exact"
        )
    return replace(block, effective=widest, source=EXACT_SOURCE)
