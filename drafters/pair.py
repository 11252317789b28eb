"""A target and its drafter, loaded in the order that fails early: configs, headers, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from ..core.config import TargetConfig, read_target_config
from ..core.decode import Generation
from ..core.drafter import Drafter
from ..core.errors import DflashError
from ..core.hub import resolve_directory
from ..core.loading import load_target
from ..core.options import GenerateOptions, Speculation, check_drafter_bits, parse_speculation
from ..core.target import Target
from . import bundled
from .config import DrafterConfig, read_drafter_config
from .guards import check_pair
from .load import check_files
from .routes import Route, choose_route
from .slab_load import load_drafter_at
from .slab_store import Report

Progress = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """What a request needs: target, tokenizer, the drafter (or None), and the route with its
    reason."""

    target: Target
    tokenizer: Any
    drafter: Drafter | None
    route: Route

    def generate(
        self, prompt: str | Sequence[int], options: GenerateOptions | None = None
    ) -> Generation:
        """One request; iterate the result for events. Text is encoded as it stands."""
        ids = encode_text(self.tokenizer, prompt) if isinstance(prompt, str) else prompt
        return Generation(
            self.target, ids, self.tokenizer.detokenizer, drafter=self.drafter, options=options
        )


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Raw text to ids, as mlx-lm encodes it: special-token strings are parsed, nothing trimmed."""
    bos = tokenizer.bos_token
    ids: list[int] = tokenizer.encode(
        text, add_special_tokens=bos is None or not text.startswith(bos)
    )
    return ids


def locate(reference: str) -> Path:
    """The directory of a model reference: bundled:NAME, a directory, or a hub id."""
    return bundled.bundled_directory(reference) or resolve_directory(reference)


def find_drafter(model: str | None, drafter: str | None) -> str | None:
    """The drafter of a request: the one given, else MODEL/drafter, else the bundled target's."""
    if drafter is not None:
        return drafter
    if model is None or model == bundled.TARGET:
        return bundled.DRAFTER
    beside = Path(model).expanduser() / "drafter"
    return str(beside) if beside.is_dir() else None


def load_pair(
    model: str | None = None,
    drafter: str | None = None,
    speculation: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    drafter_bits: int | None = None,
    report: Report | None = None,
) -> Pair:
    """Load a target and, unless speculation is none, its drafter.

    Without `model` it is the bundled pair. Under `auto` a drafter that cannot be used leaves
    plain decoding, and the route's reason says why; under `dflash` it is an error. With `none`
    no drafter file is opened. drafter_bits: 4, 8 or 16 (as it is); None is 4 for a drafter that
    is not quantized yet. report: notes and progress of its slab, which is made on first use.
    """
    say = progress or (lambda message: None)
    requested = parse_speculation(speculation)
    if drafter_bits is not None:
        check_drafter_bits(drafter_bits)
    target_config = read_target_config(locate(model or bundled.TARGET))
    reference = None if requested == "none" else find_drafter(model, drafter)
    drafter_config, problem = None, None
    if reference is not None:
        drafter_config, problem = _tolerate(
            requested, lambda: _checked_config(target_config, reference)
        )
    if drafter_config is None:
        choose_route(requested, None, problem)  # an explicit route fails before the big load
    say(f"loading target {target_config.path}")
    loaded = load_target(target_config, dtype)
    chosen: Drafter | None = None
    if drafter_config is not None:
        say(f"loading drafter {drafter_config.path}")
        config = drafter_config
        chosen, problem = _tolerate(
            requested,
            lambda: load_drafter_at(
                config, loaded.target, drafter_dtype(loaded.target), drafter_bits, report
            ),
        )
    route = choose_route(requested, chosen.name if chosen else None, problem)
    return Pair(loaded.target, loaded.tokenizer, chosen, route)


def drafter_dtype(target: Target) -> mx.Dtype:
    """The target's compute dtype; bfloat16 for a float16 target, whose range is too small (R14)."""
    dtype = target.compute_dtype
    return mx.bfloat16 if dtype == mx.float16 else dtype


def _checked_config(target: TargetConfig, reference: str) -> DrafterConfig:
    config = read_drafter_config(locate(reference))
    check_pair(target, config)
    return check_files(config)[0]


def _tolerate(requested: Speculation, load: Callable[[], T]) -> tuple[T | None, str | None]:
    """(result, None), or under auto (None, why not); an explicit request raises."""
    try:
        return load(), None
    except DflashError as exc:
        if requested != "auto":
            raise
        return None, str(exc)
