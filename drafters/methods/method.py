"""What the suite must know of a way to draft: one row of the table in `table.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.block import Block
from ...core.options import GenerateOptions, LoadOptions, Speculation
from ...core.report import Report

if TYPE_CHECKING:
    from ...core.checkpoint.target_config import TargetConfig
    from ...core.decode.drafter import Drafter
    from ...core.target.target import Target


@dataclass(frozen=True)
class Candidate:
    """A drafter that may be used: judged by its config and headers, its weights not opened yet.

    load: opens the weights and binds them to the loaded target; None where there is nothing to
    load, and `problem` says why. where: its directory, for progress; method: `dflash` or `mtp`;
    named: the user named its files, so that they may not be passed over.
    """

    load: Callable[[Target], Drafter] | None = None
    where: Path | None = None
    problem: str = ""
    method: str = ""
    named: bool = False


@dataclass(frozen=True)
class Method:
    """One way to draft.

    speculation: the --speculation value that asks for it; names of its drafters begin with it.
    option: the command's option that names its files.
    absent: why there is none, where its files were neither given nor found.
    loaded: the reason of a route that runs it; {name} is the drafter's.
    ignored: what is said of its options where none of its drafters runs; {route} is what runs.
    files_option: the field of LoadOptions that names its files.
    load_options: the fields of LoadOptions that concern it alone; noted_options: those of them
        that are named where they do nothing.
    request_options: the fields of GenerateOptions that concern it alone.
    check_groups: the doctor's groups of checks that judge it.
    find: reads configs and headers; raises a DflashError for files that cannot be used.
    depth: what a benchmark adds to an arm's name; asked: its depth was asked for.
    arm_settings: what a benchmark says of an arm, in print order.
    """

    speculation: Speculation
    option: str
    absent: str
    loaded: str
    ignored: str
    files_option: str
    load_options: tuple[str, ...]
    noted_options: tuple[str, ...]
    request_options: tuple[str, ...]
    check_groups: tuple[str, ...]
    find: Callable[[TargetConfig, LoadOptions, Report], Candidate]
    depth: Callable[[Block, bool], str]
    arm_settings: Callable[[LoadOptions, Drafter, Block], Mapping[str, object]]

    def owns(self, name: str) -> bool:
        """Whether a drafter of this name (`dflash`, `dflash2`, `mtp`) is of this method."""
        return name.startswith(self.speculation)

    def is_named(self, loading: LoadOptions) -> bool:
        """Whether the user named its files: then they are used, or what is wrong is an error."""
        return getattr(loading, self.files_option) is not None

    def ignored_options(
        self, requested: Speculation, options: GenerateOptions, loading: LoadOptions
    ) -> list[str]:
        """Its options that were given, as the command names them.

        Under auto its files were looked for, and what came of them is in the route's reason.
        """
        default = LoadOptions()
        looked_for = (self.files_option,) if requested == "auto" else ()
        given = [
            name
            for name in self.noted_options
            if getattr(loading, name) != getattr(default, name) and name not in looked_for
        ]
        given += [name for name in self.request_options if getattr(options, name) is not None]
        return [f"--{name.replace('_', '-')}" for name in given]
