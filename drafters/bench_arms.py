"""Arms from one loaded target: every drafter is opened once, and shared by the arms that use it.

Configs and headers are checked for all arms before any big file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.bench_types import Arm
from ..core.config import TargetConfig, read_target_config
from ..core.drafter import Drafter
from ..core.errors import DflashError, RouteUnavailable
from ..core.loading import LoadedTarget, load_target
from ..core.options import NO_BLOCK, GenerateOptions
from . import bundled
from .bench_specs import ArmSpec
from .config import DrafterConfig, read_drafter_config
from .guards import check_pair
from .load import load_drafter
from .mtp_find import MtpSource, absence, find_head
from .mtp_load import load_head
from .pair import drafter_dtype, find_drafter, locate

Source = DrafterConfig | MtpSource


@dataclass(frozen=True)
class Choice:
    """What an arm will run: `source` is None for plain decoding, whose `reason` says why;
    reference: how a reader would name the drafter."""

    spec: ArmSpec
    source: Source | None = None
    reference: str = ""
    reason: str = ""


@dataclass(frozen=True)
class BenchSetup:
    """One target, its tokenizer, the arms, and the directories whose bytes decide the result."""

    target: LoadedTarget
    arms: list[Arm]
    directories: list[Path]


@dataclass
class ArmLoader:
    """model, drafter: as `dflash generate` takes them; a spec's own drafter goes first."""

    model: str | None
    drafter: str | None
    config: TargetConfig
    _opened: dict[Path, Drafter] = field(default_factory=dict)

    def choose(self, spec: ArmSpec) -> Choice:
        """Which drafter an arm runs with, from configs and headers alone.

        Explicit routes that cannot run are RouteUnavailable; auto goes on to the next.
        """
        if spec.speculation == "none":
            return Choice(spec)
        problems = []
        finders = {"dflash": self._find_dflash, "mtp": self._find_mtp}
        for route, find in finders.items():
            if spec.speculation in (route, "auto"):
                try:
                    return find(spec)
                except DflashError as exc:
                    problems.append(str(exc))
        if spec.speculation != "auto":
            raise RouteUnavailable(f"arm {spec.speculation} cannot run: {problems[0]}")
        return Choice(spec, reason="; ".join(problems))

    def build(self, choice: Choice, target: LoadedTarget) -> Arm:
        """Open the drafter, unless another arm has, and settle the arm's block.

        Raises OptionError where the options ask for what the drafter cannot do.
        """
        spec = choice.spec
        options = GenerateOptions(
            block_size=spec.block_size,
            draft_tokens=spec.draft_tokens or GenerateOptions.draft_tokens,
            gate=spec.gate,
        )
        drafter = None if choice.source is None else self._open(choice.source, target)
        block = drafter.block(options) if drafter else NO_BLOCK
        route = drafter.name if drafter else "none"
        settings: dict[str, Any] = {"requested": spec.speculation, "route": route}
        if choice.source is not None:
            settings["drafter"] = choice.reference
            if route != "mtp":
                settings["block_size"] = block.effective
            settings["draft_tokens"] = block.draft_tokens
            settings["gate"] = "on" if spec.gate else "off"
        elif choice.reason:
            settings["reason"] = choice.reason
        return Arm(_name(route, block.draft_tokens, spec), drafter, options, settings)

    def _find_dflash(self, spec: ArmSpec) -> Choice:
        reference = spec.drafter or find_drafter(self.model, self.drafter)
        if reference is None:
            raise RouteUnavailable("no drafter was given; name one with --drafter")
        config = read_drafter_config(locate(reference))
        check_pair(self.config, config)
        return Choice(spec, config, reference)

    def _find_mtp(self, spec: ArmSpec) -> Choice:
        source = find_head(self.config)
        if source is None:
            raise RouteUnavailable(absence(self.config))
        own = source.where == self.config.path
        return Choice(spec, source, "the target's own head" if own else str(source.where))

    def _open(self, source: Source, loaded: LoadedTarget) -> Drafter:
        place = _directory(source)
        if place not in self._opened:
            dtype = drafter_dtype(loaded.target)
            self._opened[place] = (
                load_drafter(source, loaded.target, dtype)
                if isinstance(source, DrafterConfig)
                else load_head(source, loaded.target, dtype)
            )
        return self._opened[place]


def load_arms(
    specs: Sequence[ArmSpec],
    model: str | None = None,
    drafter: str | None = None,
    dtype: str = "auto",
    say: Callable[[str], None] = lambda message: None,
) -> BenchSetup:
    """Load one target and every drafter that some arm needs; failures come before the big load."""
    config = read_target_config(locate(model or bundled.TARGET))
    loader = ArmLoader(model, drafter, config)
    choices = [loader.choose(spec) for spec in specs]
    say(f"loading target {config.path}")
    loaded = load_target(config, dtype)
    arms = []
    for choice in choices:
        if choice.source is not None:
            say(f"loading drafter {_directory(choice.source)}")
        arms.append(loader.build(choice, loaded))
    used = [_directory(choice.source) for choice in choices if choice.source is not None]
    directories = [config.path, *(place for place in used if place.is_dir())]
    return BenchSetup(loaded, arms, list(dict.fromkeys(directories)))


def _directory(source: Source) -> Path:
    return source.path if isinstance(source, DrafterConfig) else source.where


def _name(route: str, draft_tokens: int, spec: ArmSpec) -> str:
    """Short and telling: the route, and the depth wherever it was asked for or is MTP's."""
    if route == "mtp":
        name = f"mtp k={draft_tokens}"
    elif spec.block_size is not None and route != "none":
        name = f"{route} block {spec.block_size}"
    else:
        name = route
    return f"{name} gated" if spec.gate else name
