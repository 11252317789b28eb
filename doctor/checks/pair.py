"""Do the two fit? The loaders' guards one by one, then what only costs acceptance or room."""

from __future__ import annotations

from ...core.errors import DflashError
from ...drafters import guards
from ..results import CheckResult, NotReached
from ..units import readable
from .check import Check, Words, check
from .memory import drafter_bytes, resident, target_bytes
from .once import reach
from .subjects import PairSubject
from .tokenizer import describe_difference


@check("pair.vocab", "one vocabulary: embedding and head are the target's own", guards.ADVICE)
def vocab(say: Words, pair: PairSubject) -> CheckResult:
    """First of the guards."""
    guards.check_vocab(pair.target.config, pair.drafter.config)
    return say.passed(f"{pair.drafter.config.vocab_size} ids in both")


@check("pair.layers", "the layer count that the drafter was trained on", guards.ADVICE)
def layers(say: Words, pair: PairSubject) -> CheckResult:
    """Taps of a target of another depth mean something else."""
    guards.check_layer_count(pair.target.config, pair.drafter.config)
    return say.passed(f"{pair.target.config.num_hidden_layers} layers")


@check("pair.hidden_size", "one hidden size: tap rows have the target's width", guards.ADVICE)
def hidden_size(say: Words, pair: PairSubject) -> CheckResult:
    """`fc` and the borrowed embedding need it."""
    guards.check_hidden_size(pair.target.config, pair.drafter.config)
    return say.passed(f"hidden {pair.target.config.hidden_size}")


@check("pair.taps", "every tap is a layer of the target, counted from 0", guards.ADVICE)
def taps(say: Words, pair: PairSubject) -> CheckResult:
    """Exports that count from 1 end one too far."""
    guards.check_taps(pair.target.config, pair.drafter.config)
    ids = ", ".join(map(str, pair.drafter.config.target_layer_ids))
    return say.passed(f"layers {ids} of 0..{pair.target.config.num_hidden_layers - 1}")


@check(
    "pair.mask",
    "a mask id that is not an ordinary token of the target and ends nothing",
    "take the mask_token_id of the drafter's own release",
)
def mask(say: Words, pair: PairSubject) -> CheckResult:
    """A special token, or an embedding row past the tokenizer's ids."""
    target, found = pair.target, pair.drafter.config.mask_token_id
    reach(target.opened_tokenizer)
    if found in target.config.eos_ids:
        return say.warned(f"mask id {found} is an eos id of the target")
    if found in target.tokenizer.added:
        return say.passed(f"id {found}, {target.tokenizer.added[found]}")
    token = target.tokenizer.ordinary.get(found)
    if token is not None:
        return say.warned(f"mask id {found} is the ordinary token {token!r}")
    return say.passed(f"id {found}, an embedding row that no text uses")


@check(
    "pair.tokenizer",
    "no tokenizer in the drafter's directory, or the target's",
    "check that the drafter was trained for this target; the target's tokenizer is used",
)
def tokenizer(say: Words, pair: PairSubject) -> CheckResult:
    """Ids that mean other strings cost acceptance and are never noticed otherwise."""
    reach(pair.target.opened_tokenizer)
    try:
        if pair.drafter.tokenizer.digest is None:
            return say.passed("the drafter has none; the target's is used")
        difference = describe_difference(pair.target.tokenizer, pair.drafter.tokenizer)
    except (DflashError, OSError) as exc:  # the drafter's, which nothing reads
        return say.warned(str(exc))
    if difference is not None:
        return say.warned(difference)
    return say.passed("the same ids; the target's is used")


@check(
    "pair.positions",
    "a drafter that was made for as many positions as the target",
    "keep longer texts without a drafter, or take one that was made for them",
)
def positions(say: Words, pair: PairSubject) -> CheckResult:
    """Beyond its own positions fewer drafts are kept; the ids stay."""
    target, drafter = pair.target.config.max_positions, pair.drafter.config.max_position_embeddings
    if target is None:
        return say.passed(f"drafter {drafter:,}, target not stated")
    found = f"drafter {drafter:,}, target {target:,}"
    return say.passed(found) if drafter >= target else say.warned(found)


@check(
    "pair.memory",
    "target, drafter and caches that fit into the device's memory",
    "take a smaller or quantized target, or a drafter of fewer bits",
)
def memory(say: Words, pair: PairSubject) -> CheckResult:
    """What generate holds at once; caches grow with the text."""
    machine = pair.target.machine
    target, drafter = target_bytes(pair.target), drafter_bytes(pair.drafter)
    if target > machine.memory_bytes:
        raise NotReached("target.memory")
    found = (
        f"target {readable(target)}, drafter {readable(drafter)}, device "
        f"{readable(machine.memory_bytes)}{resident(machine.backend)}"
    )
    return say.passed(found) if target + drafter <= machine.memory_bytes else say.warned(found)


PAIR_CHECKS: tuple[Check[PairSubject], ...] = (
    vocab, layers, hidden_size, taps, mask, tokenizer, positions, memory,
)  # fmt: skip
