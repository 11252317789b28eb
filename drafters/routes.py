"""Which way a request is decoded, and why: said aloud, never chosen in silence."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import RouteUnavailable
from ..core.options import Speculation


@dataclass(frozen=True)
class Route:
    """requested: the --speculation value; route: `dflash`, `dflash2` or `none`; reason: a line."""

    requested: Speculation
    route: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """The `speculation` object of `--json`."""
        return {"requested": self.requested, "route": self.route, "reason": self.reason}


def choose_route(requested: Speculation, drafter: str | None, problem: str | None) -> Route:
    """drafter: name of the loaded drafter; problem: why there is none.

    An explicit `dflash` without a drafter is RouteUnavailable, never plain decoding in silence.
    """
    if requested == "none":
        return Route(requested, "none", "speculation is off by request")
    if drafter is not None:
        return Route(requested, drafter, f"{drafter} drafter loaded")
    reason = problem or "no drafter was given"
    if requested == "dflash":
        raise RouteUnavailable(
            f"--speculation dflash cannot run: {reason}. Give one with --drafter DIR, or use "
            "--speculation auto"
        )
    return Route(requested, "none", reason)
