"""A target and its drafters, loaded in the order that fails early: configs, headers, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.decode.drafter import Drafter
from ..core.errors import resource_errors
from ..core.exact.promise import Promise, keep_exact
from ..core.loading.load import load_target
from ..core.options import GenerateOptions, LoadOptions
from ..core.report import SILENT, Report
from ..core.target.target import Target
from ..core.wired_limit import while_raised
from .bundled import paths as bundled
from .guards import open_target_config
from .locate import locate
from .opening import find_candidates, open_candidates
from .routes import Route, choose_route
from .stored_block import use_stored_block

if TYPE_CHECKING:
    from .methods.method import Candidate


@dataclass(frozen=True)
class Pair:
    """What a request needs: target, tokenizer, the route with its reason, and its drafters.

    drafter: the one that the route starts with, None for plain decoding; reserve: the one that
    the gate tries where the first does not pay; problems: (method, why its drafter is not there);
    promise: what was measured of the target's rows; notes: what was put right of the target's
    files, a line each; adapter_path: the LoRA adapter over the target.
    """

    target: Target
    tokenizer: Any
    drafter: Drafter | None
    route: Route
    reserve: Drafter | None = None
    problems: tuple[tuple[str, str], ...] = ()
    promise: Promise = Promise()
    notes: tuple[str, ...] = ()
    adapter_path: str | None = None

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """The loaded ones, in the order in which `auto` tries them."""
        return tuple(one for one in (self.drafter, self.reserve) if one is not None)


@resource_errors()
@while_raised
def load_pair(
    loading: LoadOptions | None = None,
    report: Report = SILENT,
    checked: GenerateOptions | None = None,
) -> Pair:
    """Load a target and the drafters that the speculation value asks for.

    auto: the DFlash drafter, else the MTP head, else plain decoding, and the route's reason says
    why. `dflash` and `mtp` raise where they cannot run; `none` opens no drafter file. checked:
    the request whose blocks are compared with single rows where `loading.exact` is None.
    Raises ModelNotFound, CheckpointError, DrafterMismatch, RouteUnavailable, OptionError,
    ForwardMismatch, ExactUnavailable and ResourceError, each naming what was found.
    """
    loading = loading or LoadOptions()
    config = open_target_config(locate(loading.model or bundled.TARGET))
    candidates = find_candidates(config, loading, report)
    report.say(f"loading target {config.path}")
    loaded = load_target(config, loading.dtype, loading.kernels, loading.adapter_path)

    def open_one(candidate: Candidate) -> Drafter:
        return open_drafter(candidate, loaded.target, loading, report)

    opened = open_candidates(candidates, loading.speculation, open_one, reserve=loading.reserve)
    route = choose_route(loading.speculation, opened.attempts)
    blocks_of = checked or GenerateOptions()
    rows = max((one.block(blocks_of).effective for one in opened.drafters), default=1)
    report.say("checking that a row depends on its own past alone")
    target, promise = keep_exact(
        loaded.target, loading.exact, rows, stored=loading.stored_probe, note=report.note
    )
    first, second = [*opened.drafters, None, None][:2]
    return Pair(
        target,
        loaded.tokenizer,
        first,
        route,
        second,
        opened.problems,
        promise,
        loaded.notes,
        loading.adapter_path,
    )


def open_drafter(
    candidate: Candidate, target: Target, loading: LoadOptions, report: Report
) -> Drafter:
    """Load a candidate's weights, bind them to the target, and take its stored block."""
    if candidate.load is None:
        raise ValueError(f"nothing to load: {candidate.problem}")
    report.say(f"loading drafter {candidate.where}")
    opened = candidate.load(target)
    if loading.stored_probe:
        use_stored_block(target, opened, report.note)
    return opened
