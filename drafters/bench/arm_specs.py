"""Arms as the command line names them: `--arm NAME:OPTIONS`, `--ab VALUE`, `--sweep KEY=RANGE`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from ...core.errors import OptionError
from ...core.options import (
    GenerateOptions,
    LoadOptions,
    MtpHidden,
    MtpNorms,
    Speculation,
    check_drafter_bits,
    parse_speculation,
)
from ..methods.table import methods_for


@dataclass(frozen=True)
class ArmSpec:
    """One arm as asked for; None means the default of `dflash generate`. gate is off unless it
    is what the arm is about."""

    speculation: Speculation
    drafter: str | None = None
    mtp: str | None = None
    mtp_hidden: MtpHidden = "post"
    mtp_norms: MtpNorms | None = None
    drafter_bits: int | None = None
    block_size: int | None = None
    draft_tokens: int | None = None
    gate: bool = False

    def __post_init__(self) -> None:
        allowed = {"gate"} if self.speculation != "none" else set()
        for method in methods_for(self.speculation):
            allowed |= {*method.load_options, *method.request_options}
        for one in fields(self)[1:]:
            if getattr(self, one.name) != one.default and one.name not in allowed:
                listed = ", ".join(sorted(name.replace("_", "-") for name in allowed)) or "none"
                raise OptionError(
                    f"arm {self.speculation} has no option {one.name.replace('_', '-')}; it takes "
                    f"{listed}"
                )

    def loading(self, common: LoadOptions) -> LoadOptions:
        """How this arm's drafters are found and opened: its own values over the command's."""
        return replace(
            common,
            speculation=self.speculation,
            drafter=self.drafter or common.drafter,
            mtp=self.mtp or common.mtp,
            mtp_hidden=self.mtp_hidden,
            mtp_norms=self.mtp_norms or common.mtp_norms,
            drafter_bits=self.drafter_bits or common.drafter_bits,
        )

    def options(self) -> GenerateOptions:
        """How its answers are decoded; the benchmark sets the limits."""
        return GenerateOptions(
            block_size=self.block_size, draft_tokens=self.draft_tokens, gate=self.gate
        )


def parse_arm(text: str) -> ArmSpec:
    """`dflash:block-size=5,drafter=DIR`; raises OptionError naming what is wrong."""
    name, _, options = text.partition(":")
    spec = ArmSpec(parse_speculation(name))
    for option in filter(None, options.split(",")):
        key, equals, value = option.partition("=")
        field = key.strip().replace("-", "_")
        if not equals or field not in PARSERS:
            known = ", ".join(f"{name.replace('_', '-')}=..." for name in PARSERS)
            raise OptionError(f"arm '{text}': '{option}' is not an option; there are {known}")
        try:
            parsed = PARSERS[field](value.strip())
        except ValueError as exc:
            raise OptionError(f"arm '{text}': {key}={value} is not {exc}") from exc
        spec = replace(spec, **{field: parsed})
    return spec


def ab_specs(value: str) -> list[ArmSpec]:
    """Arm A is what `auto` would run, arm B the value."""
    return [ArmSpec("auto"), ArmSpec(parse_speculation(value))]


def parse_sweep(text: str) -> list[ArmSpec]:
    """`block-size=2..8` or `draft-tokens=1,2,4`: plain decoding first, then one arm a value."""
    key, _, values = text.partition("=")
    if key.strip() == "block-size":
        swept = [ArmSpec("dflash", block_size=value) for value in _numbers(text, values)]
    elif key.strip() == "draft-tokens":
        swept = [ArmSpec("mtp", draft_tokens=value) for value in _numbers(text, values)]
    else:
        raise OptionError(f"--sweep '{text}': give block-size=2..8 or draft-tokens=1..6")
    return [ArmSpec("none"), *swept]


def _numbers(text: str, values: str) -> list[int]:
    span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", values)
    if span:
        found = list(range(int(span[1]), int(span[2]) + 1))
    elif re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", values):
        found = [int(value) for value in values.split(",")]
    else:
        raise OptionError(f"--sweep '{text}': '{values}' is neither A..B nor a list A,B,C")
    if not found:
        raise OptionError(f"--sweep '{text}': the range is empty; give the smaller number first")
    return found


def _whole(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("a whole number")
    return int(value)


def _bits(value: str) -> int:
    return check_drafter_bits(_whole(value))


def _on_off(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError("on or off")
    return value == "on"


def _text(value: str) -> str:
    if not value:
        raise ValueError("a directory or hub id")
    return value


def _hidden(value: str) -> str:
    if value not in get_args(MtpHidden):
        raise ValueError(" or ".join(get_args(MtpHidden)))
    return value


def _norms(value: str) -> str:
    if value not in get_args(MtpNorms):
        raise ValueError(" or ".join(get_args(MtpNorms)))
    return value


PARSERS: dict[str, Callable[[str], Any]] = {
    "drafter": _text,
    "mtp": _text,
    "mtp_hidden": _hidden,
    "mtp_norms": _norms,
    "drafter_bits": _bits,
    "block_size": _whole,
    "draft_tokens": _whole,
    "gate": _on_off,
}
