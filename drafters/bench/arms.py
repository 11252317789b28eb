"""Arms from one loaded target: every drafter is opened once, and shared by the arms that use it.

Configs and headers are checked for all arms before any big file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...core.bench.types import Arm
from ...core.block import NO_BLOCK, Block, limit_block
from ...core.checkpoint.target_config import TargetConfig
from ...core.decode.drafter import Drafter
from ...core.errors import OptionError
from ...core.exact.promise import Promise, keep_exact
from ...core.loading.load import LoadedTarget, load_target
from ...core.options import LoadOptions
from ...core.report import SILENT, Report
from ...core.target.target import Target
from ...core.wired_limit import while_raised
from ..bundled import paths as bundled
from ..guards import open_target_config
from ..locate import locate
from ..methods.method import Candidate
from ..methods.table import method_of
from ..opening import find_candidates, open_candidates
from ..pair import open_drafter
from ..routes import Route, choose_route
from .arm_specs import ArmSpec
from .weights import weights_of


@dataclass(frozen=True)
class BenchSetup:
    """One target, its tokenizer, the arms, and the directories whose bytes decide the result.

    promise: what was measured of the target's rows.
    """

    target: LoadedTarget
    arms: list[Arm]
    directories: list[Path]
    promise: Promise


@dataclass
class ArmLoader:
    """Opens arms over one target. loading: as `dflash generate` takes it; a spec's own go first.

    directories: those that drafters were opened from.
    """

    config: TargetConfig
    loading: LoadOptions
    report: Report = SILENT
    directories: list[Path] = field(default_factory=list)
    _opened: dict[tuple[Path | None, str, str | None, int | None], Drafter] = field(
        default_factory=dict
    )

    def candidates(self, spec: ArmSpec) -> Sequence[Candidate]:
        """From configs and headers alone; an explicit arm that cannot run is RouteUnavailable."""
        return find_candidates(self.config, spec.loading(self.loading), self.report)

    def build(self, spec: ArmSpec, candidates: Sequence[Candidate], target: Target) -> Arm:
        """Open the drafters that no arm before has, and settle the block.

        Raises OptionError where the options ask for what the drafter cannot do. A reserve is the
        gate's to use, so an arm without the gate opens none.
        """
        loading = spec.loading(self.loading)
        open_one = partial(self._open, spec=spec, loading=loading, target=target)
        opened = open_candidates(candidates, spec.speculation, open_one, reserve=spec.gate)
        route = choose_route(spec.speculation, opened.attempts)
        options = spec.options()
        drafter, reserve = [*opened.drafters, None, None][:2]
        blocks = {
            one.name: limit_block(one.block(options), target.widest) for one in opened.drafters
        }
        for block in blocks.values():
            require_width(spec.draft_tokens, block, target.widest)
        block = NO_BLOCK if drafter is None else blocks[drafter.name]
        settings: dict[str, Any] = {"requested": spec.speculation, "route": route.route}
        if drafter is None:
            settings |= {} if spec.speculation == "none" else {"reason": route.reason}
        else:
            method = method_of(drafter.name)
            settings |= method.arm_settings(loading, drafter, block) if method else {}
            settings["gate"] = "on" if spec.gate else "off"
        if reserve is not None:
            settings["reserve"] = reserve.name
        settings |= weights_of("target", target.backbone.model)
        weights = getattr(drafter, "model", None)
        settings |= {} if weights is None else weights_of("drafter", weights)
        return Arm(arm_name(route, block, spec), drafter, reserve, options, settings)

    def _open(
        self, candidate: Candidate, spec: ArmSpec, loading: LoadOptions, target: Target
    ) -> Drafter:
        key = candidate.where, spec.mtp_hidden, spec.mtp_norms, spec.drafter_bits
        if key not in self._opened:
            self._opened[key] = open_drafter(candidate, target, loading, self.report)
        if candidate.where is not None and candidate.where.is_dir():
            self.directories.append(candidate.where)
        return self._opened[key]


@while_raised
def load_arms(
    specs: Sequence[ArmSpec], loading: LoadOptions | None = None, report: Report = SILENT
) -> BenchSetup:
    """Load one target and every drafter that some arm needs; failures come before the big load.

    loading.exact: True as of load_pair; else nothing is measured: a benchmark compares the ids
    themselves. Its speculation is not asked: each arm has its own.
    """
    loading = loading or LoadOptions()
    config = open_target_config(locate(loading.model or bundled.TARGET))
    loader = ArmLoader(config, loading, report)
    candidates = [loader.candidates(spec) for spec in specs]
    report.say(f"loading target {config.path}")
    loaded = load_target(config, loading.dtype, loading.kernels, loading.adapter_path)
    if loading.exact:
        report.say("checking that a row depends on its own past alone")
    target, promise = keep_exact(
        loaded.target, bool(loading.exact), rows=1, stored=loading.stored_probe, note=report.note
    )
    arms = [
        loader.build(spec, found, target) for spec, found in zip(specs, candidates, strict=True)
    ]
    directories = list(dict.fromkeys([config.path, *loader.directories]))
    return BenchSetup(LoadedTarget(target, loaded.tokenizer), arms, directories, promise)


def arm_name(route: Route, block: Block, spec: ArmSpec) -> str:
    """Short and telling: the route, and its depth and bits where they were asked for."""
    name, method = route.route, method_of(route.route)
    if method is not None:
        asked = any(getattr(spec, option) is not None for option in method.request_options)
        name += method.depth(block, asked)
        if spec.drafter_bits is not None and "drafter_bits" in method.load_options:
            name += f" {spec.drafter_bits} bits"
    return f"{name} gated" if spec.gate else name


def require_width(draft_tokens: int | None, block: Block, widest: int | None) -> None:
    """Raise OptionError for a number of drafts that was asked for and cut: the arm would be that of
    fewer. A block that was trained is not meant: --draft-tokens is not its concern."""
    is_chain = block.trained is None
    if is_chain and draft_tokens is not None and draft_tokens > block.draft_tokens:
        raise OptionError(
            f"draft-tokens {draft_tokens} is above the exact width of this target on this device, "
            f"{widest} rows, and would measure the arm of {block.draft_tokens} again: give at most "
            f"{block.draft_tokens}, or run with --no-exact"
        )
