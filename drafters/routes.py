"""Which way a request is decoded, and why: said aloud, never chosen in silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import RouteUnavailable
from ..core.options import GenerateOptions, LoadOptions, Speculation
from .methods.table import METHODS, method_of, methods_for


@dataclass(frozen=True)
class Route:
    """requested: the --speculation value; route: `dflash`, `dflash2`, `mtp` or `none`; reason: a
    line; reserve: what the gate tries where `route` does not pay, before plain decoding."""

    requested: Speculation
    route: str
    reason: str
    reserve: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """The `speculation` object of `--json`."""
        return {
            "requested": self.requested,
            "route": self.route,
            "reason": self.reason,
            "reserve": self.reserve,
        }

    def notes(self, options: GenerateOptions, loading: LoadOptions) -> list[str]:
        """Options that were given and do nothing in this request."""
        notes = options.sampling.idle()
        for method in METHODS:
            if not any(method.owns(name) for name in (self.route, self.reserve or "")):
                ignored = method.ignored.format(route=self.route)
                given = method.ignored_options(self.requested, options, loading)
                notes += [f"{option} {ignored}" for option in given]
        if options.gate and not options.gated and self.route != "none":
            notes.append("gate and adaptive block are off: a seeded sample repeats exactly")
        return notes


@dataclass(frozen=True)
class Attempt:
    """What became of one kind of drafter: its name where it is loaded, else the problem."""

    name: str | None = None
    problem: str = ""


def choose_route(requested: Speculation, attempts: Sequence[Attempt]) -> Route:
    """The first loaded drafter runs, a second one is the reserve; none means plain decoding.

    attempts: in the order in which they are tried. An explicit `dflash` or `mtp` without its
    drafter is RouteUnavailable, never another route in silence.
    """
    if requested == "none":
        return Route(requested, "none", "speculation is off by request")
    problems = [attempt.problem for attempt in attempts if attempt.problem]
    loaded = [attempt.name for attempt in attempts if attempt.name is not None]
    if loaded:
        first, reserve = loaded[0], loaded[1] if len(loaded) > 1 else None
        method = method_of(first)
        loaded_as = method.loaded if method is not None else "{name} drafter loaded"
        reasons = [loaded_as.format(name=first)]
        reasons += [f"{reserve} in reserve"] if reserve else []
        return Route(requested, first, "; ".join([*reasons, *problems]), reserve)
    reason = "; ".join(problems)
    if requested != "auto":
        option = methods_for(requested)[0].option
        raise RouteUnavailable(
            f"--speculation {requested} cannot run: {reason}. Give one with {option} DIR, or use "
            "--speculation auto"
        )
    return Route(requested, "none", reason)
