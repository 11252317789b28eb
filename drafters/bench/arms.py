"""Arms from one loaded target: every drafter is opened once, and shared by the arms that use it.

Configs and headers are checked for all arms before any big file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...core.bench.types import Arm
from ...core.checkpoint.target_config import TargetConfig, read_target_config
from ...core.decode.drafter import Drafter
from ...core.errors import OptionError
from ...core.exact.promise import Promise, keep_exact
from ...core.loading.load import LoadedTarget, load_target
from ...core.options import (
    DEFAULT_KERNELS,
    NO_BLOCK,
    Block,
    GenerateOptions,
    check_drafter_bits,
    limit_block,
)
from ..bundled import paths as bundled
from ..candidates import Candidate, DrafterRequest, find_candidates, tolerate
from ..locate import locate
from ..pair import find_drafter
from ..routes import Attempt, Route, choose_route
from ..slab.store import Report
from ..stored_block import use_stored_block
from .arm_specs import ArmSpec

Say = Callable[[str], None]


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
    """model, drafter, mtp, drafter_bits: as `dflash generate` takes them; a spec's own go first.

    report: notes, and progress of slabs, which are made on first use. stored_probe: as of
    load_pair.
    """

    config: TargetConfig
    model: str | None = None
    drafter: str | None = None
    mtp: str | None = None
    drafter_bits: int | None = None
    say: Say = lambda message: None
    report: Report | None = None
    stored_probe: bool = True
    directories: list[Path] = field(default_factory=list)
    _opened: dict[tuple[Path | None, str, int | None], Drafter] = field(default_factory=dict)

    def request(self, spec: ArmSpec) -> DrafterRequest:
        """What an arm asks for, as `dflash generate` would ask for it."""
        reference = spec.drafter or find_drafter(self.model, self.drafter)
        return DrafterRequest(
            spec.speculation,
            reference,
            spec.mtp or self.mtp,
            spec.mtp_hidden,
            spec.drafter_bits or self.drafter_bits,
            self.report,
        )

    def candidates(self, spec: ArmSpec) -> list[Candidate]:
        """From configs and headers alone; an explicit arm that cannot run is RouteUnavailable."""
        found = find_candidates(self.config, self.request(spec))
        if not any(candidate.load for candidate in found):
            problems = [Attempt(problem=candidate.problem) for candidate in found]
            choose_route(spec.speculation, problems)
        return found

    def build(self, spec: ArmSpec, candidates: Sequence[Candidate], loaded: LoadedTarget) -> Arm:
        """Open the drafters that no arm before has, and settle the block.

        Raises OptionError where the options ask for what the drafter cannot do.
        """
        drafters: list[Drafter] = []
        attempts: list[Attempt] = []
        for candidate in candidates:
            if drafters and not spec.gate:
                break  # a reserve is the gate's to use
            action = partial(self._open, candidate, spec, loaded)
            opened, problem = tolerate(spec.speculation, action)
            drafters += [opened] if opened is not None else []
            attempts.append(Attempt(opened.name if opened else None, problem or candidate.problem))
        route = choose_route(spec.speculation, attempts)
        first, reserve = [*drafters, None, None][:2]
        return self._arm(spec, route, first, reserve, loaded.target.widest)

    def _open(self, candidate: Candidate, spec: ArmSpec, loaded: LoadedTarget) -> Drafter | None:
        if candidate.load is None:
            return None
        key = candidate.where, spec.mtp_hidden, spec.drafter_bits
        if key not in self._opened:
            self.say(f"loading drafter {candidate.where}")
            opened = self._opened[key] = candidate.load(loaded.target)
            if self.stored_probe:
                use_stored_block(loaded.target, opened, (self.report or Report()).note)
        if candidate.where is not None and candidate.where.is_dir():
            self.directories.append(candidate.where)
        return self._opened[key]

    def _arm(
        self,
        spec: ArmSpec,
        route: Route,
        drafter: Drafter | None,
        reserve: Drafter | None,
        widest: int | None,
    ) -> Arm:
        options = GenerateOptions(
            block_size=spec.block_size,
            draft_tokens=spec.draft_tokens,
            gate=spec.gate,
        )
        block = limit_block(drafter.block(options), widest) if drafter else NO_BLOCK
        for head in (one for one in (drafter, reserve) if one is not None and one.name == "mtp"):
            require_width(spec.draft_tokens, limit_block(head.block(options), widest), widest)
        settings: dict[str, Any] = {"requested": spec.speculation, "route": route.route}
        if drafter is None:
            settings |= {} if spec.speculation == "none" else {"reason": route.reason}
        else:
            settings["drafter"] = self._reference(spec, drafter)
            if drafter.name == "mtp":
                settings["draft_tokens"] = block.draft_tokens
                settings["mtp_hidden"] = spec.mtp_hidden
            else:
                settings["drafter_bits"] = getattr(drafter, "bits", None)
                settings["block_size"] = block.effective
            settings["gate"] = "on" if spec.gate else "off"
            if reserve is not None:
                settings["reserve"] = reserve.name
        return Arm(
            _name(route.route, block.draft_tokens, spec), drafter, reserve, options, settings
        )

    def _reference(self, spec: ArmSpec, drafter: Drafter) -> str:
        """How a reader would name the drafter's files."""
        request = self.request(spec)
        if drafter.name == "mtp":
            return request.mtp or "the target's own head"
        return request.drafter or ""


def load_arms(
    specs: Sequence[ArmSpec],
    model: str | None = None,
    drafter: str | None = None,
    mtp: str | None = None,
    drafter_bits: int | None = None,
    dtype: str = "auto",
    kernels: str = DEFAULT_KERNELS,
    say: Say = lambda message: None,
    report: Report | None = None,
    stored_probe: bool = True,
    exact: bool | None = None,
) -> BenchSetup:
    """Load one target and every drafter that some arm needs; failures come before the big load.

    exact: True as of load_pair; else nothing is measured: a benchmark compares the ids themselves.
    """
    config = read_target_config(locate(model or bundled.TARGET))
    if drafter_bits is not None:
        check_drafter_bits(drafter_bits)
    loader = ArmLoader(config, model, drafter, mtp, drafter_bits, say, report, stored_probe)
    candidates = [loader.candidates(spec) for spec in specs]
    say(f"loading target {config.path}")
    loaded = load_target(config, dtype, kernels)
    if exact:
        say("checking that a row depends on its own past alone")
    target, promise = keep_exact(
        loaded.target, bool(exact), rows=1, stored=stored_probe, note=report.note if report else say
    )
    loaded = LoadedTarget(target, loaded.tokenizer)
    arms = [
        loader.build(spec, found, loaded) for spec, found in zip(specs, candidates, strict=True)
    ]
    directories = list(dict.fromkeys([config.path, *loader.directories]))
    return BenchSetup(loaded, arms, directories, promise)


def _name(route: str, draft_tokens: int, spec: ArmSpec) -> str:
    """Short and telling: the route, and the depth wherever it was asked for or is MTP's."""
    if route == "mtp":
        name = f"mtp k={draft_tokens}"
    elif spec.block_size is not None and route != "none":
        name = f"{route} block {spec.block_size}"
    else:
        name = route
    if spec.drafter_bits is not None and route not in ("none", "mtp"):
        name += f" {spec.drafter_bits} bits"
    return f"{name} gated" if spec.gate else name


def require_width(draft_tokens: int | None, block: Block, widest: int | None) -> None:
    """Raise OptionError for a number of drafts that was asked for and cut: the arm would be that of
    fewer."""
    if draft_tokens is not None and draft_tokens > block.draft_tokens:
        raise OptionError(
            f"draft-tokens {draft_tokens} is above the exact width of this target on this device, "
            f"{widest} rows, and would measure the arm of {block.draft_tokens} again: give at most "
            f"{block.draft_tokens}, or run with --no-exact"
        )
