"""A target and its drafters, loaded in the order that fails early: configs, headers, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.checkpoint.target_config import read_target_config
from ..core.decode.chat import require_encodable
from ..core.decode.drafter import Drafter
from ..core.decode.loop import Generation
from ..core.exact.promise import Promise, keep_exact
from ..core.loading.load import load_target
from ..core.options import (
    DEFAULT_KERNELS,
    GenerateOptions,
    MtpHidden,
    check_drafter_bits,
    parse_kernels,
    parse_speculation,
)
from ..core.target.target import Target
from .bundled import paths as bundled
from .candidates import DrafterRequest, drafter_dtype, find_candidates, tolerate
from .guards import check_is_target
from .locate import find_drafter, locate
from .routes import Attempt, Route, choose_route
from .slab.store import Report
from .stored_block import use_stored_block

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Pair:
    """What a request needs: target, tokenizer, the route with its reason, and its drafters.

    drafter: the one that the route starts with, None for plain decoding; reserve: the one that
    the gate tries where the first does not pay; problems: (kind, why it is not there); promise:
    what was measured of the target's rows.
    """

    target: Target
    tokenizer: Any
    drafter: Drafter | None
    route: Route
    reserve: Drafter | None = None
    problems: tuple[tuple[str, str], ...] = ()
    promise: Promise = Promise()

    def generate(
        self, prompt: str | Sequence[int], options: GenerateOptions | None = None
    ) -> Generation:
        """One request; iterate the result for events. Text is encoded as it stands."""
        ids = encode_text(self.tokenizer, prompt) if isinstance(prompt, str) else prompt
        return Generation(
            self.target,
            ids,
            self.tokenizer.detokenizer,
            drafter=self.drafter,
            reserve=self.reserve,
            options=options,
        )


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Raw text to ids, as mlx-lm encodes it: special-token strings are parsed, nothing trimmed.

    Raises PromptError for a text that is no UTF-8.
    """
    require_encodable(text, "the prompt")
    bos = tokenizer.bos_token
    ids: list[int] = tokenizer.encode(
        text, add_special_tokens=bos is None or not text.startswith(bos)
    )
    return ids


def load_pair(
    model: str | None = None,
    drafter: str | None = None,
    speculation: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    *,
    drafter_bits: int | None = None,
    report: Report | None = None,
    mtp: str | None = None,
    mtp_hidden: MtpHidden = "post",
    reserve: bool = True,
    kernels: str = DEFAULT_KERNELS,
    stored_probe: bool = True,
    exact: bool | None = None,
    checked: GenerateOptions | None = None,
) -> Pair:
    """Load a target and the drafters that the speculation value asks for.

    Without `model` it is the bundled pair. auto: the DFlash drafter, else the MTP head (found in
    the target's files, or in the folder `mtp`), else plain decoding, and the route's reason says
    why. `dflash` and `mtp` are errors where they cannot run; `none` opens no drafter file. A
    `drafter` that is an MTP head's folder stands for `mtp`. reserve: under auto, load the MTP
    head beside a DFlash drafter, for the gate to try. drafter_bits: 4, 8 or 16 (as it is); None
    is 4 for a DFlash drafter that is not quantized yet. report: notes, and progress of its slab,
    which is made on first use. kernels: as of load_target. stored_probe: a drafter's default
    block is the best one that `dflash doctor --probe` stored for this device. exact:
    True: run the target by a plan that makes its rows exact, measured here, or raise
    ExactUnavailable; None: measure on the CPU alone, where it costs little, for the blocks of
    `checked`, elsewhere take a stored plan that costs nothing; change nothing; False: neither.
    """
    say = progress or (lambda message: None)
    requested = parse_speculation(speculation)
    parse_kernels(kernels)
    if drafter_bits is not None:
        check_drafter_bits(drafter_bits)
    config = read_target_config(locate(model or bundled.TARGET))
    check_is_target(config.raw, config.file)
    request = DrafterRequest(
        requested, find_drafter(model, drafter), mtp, mtp_hidden, drafter_bits, report
    )
    candidates = find_candidates(config, request)
    if not any(candidate.load for candidate in candidates):  # fail before the big load
        choose_route(requested, [Attempt(problem=candidate.problem) for candidate in candidates])
    say(f"loading target {config.path}")
    loaded = load_target(config, dtype, kernels)
    drafters: list[Drafter] = []
    attempts: list[Attempt] = []
    problems: list[tuple[str, str]] = []
    for candidate in candidates:
        load, problem, opened = candidate.load, candidate.problem, None
        if drafters and not reserve:
            break
        if load is not None:
            say(f"loading drafter {candidate.where}")
            opened, problem = tolerate(requested, partial(load, loaded.target))
        if opened is not None:
            drafters.append(opened)
            if stored_probe:
                use_stored_block(loaded.target, opened, report.note if report else say)
        attempts.append(Attempt(opened.name if opened is not None else None, problem))
        problems += [(candidate.kind, problem)] if problem else []
    first, second = [*drafters, None, None][:2]
    route = choose_route(requested, attempts)
    blocks_of = checked or GenerateOptions()
    rows = max((one.block(blocks_of).effective for one in drafters), default=1)
    say("checking that a row depends on its own past alone")
    note = report.note if report else say
    target, promise = keep_exact(loaded.target, exact, rows, stored=stored_probe, note=note)
    return Pair(target, loaded.tokenizer, first, route, second, tuple(problems), promise)


__all__ = ["Pair", "drafter_dtype", "encode_text", "find_drafter", "load_pair", "locate"]
