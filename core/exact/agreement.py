"""Does a row of a verify pass depend on anything but its own past? Measured, not assumed.

A fixed text is decoded over one context in several ways: other rows beside each token, other
places in the block, other cuts. Logits and caches must come out as the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..cache.kinds import cache_arrays, fork_cache
from ..cache.layer_caches import held_rows
from ..errors import ExactUnavailable
from ..options import require_positive
from ..target.target import Target

PREFILL_ROWS = 2048
DEFAULT_TOKENS = 32


@dataclass(frozen=True)
class Agreement:
    """How far several ways of decoding the same text agree, at one width and context.

    width: rows of a pass; context: tokens before the text; rows: logits compared, of which
    `equal` are the same values in every entry; largest_difference: of a logit; flips: rows whose
    argmax differs; smallest_margin: best logit less the second, over the compared text; caches:
    whether every way left the same keys, values and states.
    """

    width: int
    context: int
    rows: int
    equal: int
    largest_difference: float
    flips: int
    smallest_margin: float
    caches: bool

    @property
    def holds(self) -> bool:
        """Everything that was compared is equal."""
        return self.equal == self.rows and self.caches

    def describe(self) -> str:
        """For a message: what differs, by how much."""
        if self.holds:
            return f"{self.rows} rows equal at width {self.width}, {self.context} tokens of context"
        what = f"{self.rows - self.equal} of {self.rows} rows"
        if self.equal == self.rows:
            what = "the caches, and no row of logits,"
        return (
            f"{what} differ at width {self.width} and {self.context} tokens of context, by up to "
            f"{self.largest_difference:.3g}, with {self.flips} other tokens chosen"
        )


def agree(
    target: Target, width: int, context: int, tokens: int = DEFAULT_TOKENS, seed: int = 0
) -> Agreement:
    """Passes of `width` rows against passes of `width` rows: one row kept a pass and junk in the
    others; all kept; all kept from another base offset; mixed counts. Junk differs everywhere.

    Raises ExactUnavailable where the model's answers are too uniform to say anything.
    """
    (found,) = agree_at_widths(target, [width], context, tokens, seed)
    return found


def agree_at_widths(
    target: Target,
    widths: Sequence[int],
    context: int,
    tokens: int = DEFAULT_TOKENS,
    seed: int = 0,
) -> Iterator[Agreement]:
    """agree at each width, over one prefill."""
    require_positive("widths", len(widths))
    text = Text(target, max(widths), context, tokens, seed)
    for width in widths:
        decoded = [text.decode(width, counts) for counts in text.ways(width)]
        if width > 1 and text.junk_passes == 0:
            raise ExactUnavailable("the check says nothing: no pass had a row to roll back")
        yield _compare(text, decoded, width)


def agree_with_one_row(
    target: Target, width: int, context: int, tokens: int = DEFAULT_TOKENS, seed: int = 0
) -> Agreement:
    """Passes of one row, as plain decoding has them, against passes of `width` rows: all kept,
    and mixed counts. Raises as `agree`."""
    (found,) = agree_with_one_rows(target, [width], context, tokens, seed)
    return found


def agree_with_one_rows(
    target: Target,
    widths: Sequence[int],
    context: int,
    tokens: int = DEFAULT_TOKENS,
    seed: int = 0,
) -> Iterator[Agreement]:
    """agree_with_one_row at each width, over one prefill and one set of one-row passes."""
    require_positive("widths", len(widths))
    text = Text(target, max(widths), context, tokens, seed)
    one = text.decode(1, [1] * tokens)
    for width in widths:
        ways = [text.decode(width, [width] * tokens), text.decode(width, text.mixed_counts(width))]
        yield _compare(text, [one, *ways], width)


def agree_in_every_way(
    target: Target, width: int, context: int, tokens: int = DEFAULT_TOKENS, seed: int = 0
) -> Agreement:
    """agree and agree_with_one_row at once, over one prefill. Raises as `agree`."""
    text = Text(target, width, context, tokens, seed)
    one = text.decode(1, [1] * tokens)
    return _compare(text, [one, *(text.decode(width, counts) for counts in text.ways(width))])


def blocks_agree(target: Target, rows: int, context: int = 8, seed: int = 0) -> Agreement:
    """One block of each width 2 .. `rows` against passes of one row: the short check, of few
    passes, for where every row costs. Raises as `agree`."""
    text = Text(target, rows, context, rows, seed)
    one = text.decode(1, [1] * rows)
    narrow = [text.decode(width, [width]) for width in range(2, rows + 1)]
    return _compare(text, [one, *narrow])


def agree_up_to(
    target: Target, width: int, context: int, tokens: int = DEFAULT_TOKENS, seed: int = 0
) -> Iterator[Agreement]:
    """One block of each width 2 .. `width` in turn against passes of one row; at last the whole
    text, all rows kept, mixed counts, and mixed widths: where it stops to hold, no wider block is
    exact."""
    text = Text(target, width, context, max(tokens, width), seed)
    one = text.decode(1, [1] * len(text.ids))
    for narrow in range(2, width + 1):
        yield _compare(text, [one, text.decode(narrow, [narrow])], narrow)
    whole = [text.decode(width, counts) for counts in ([width] * tokens, text.mixed_counts())]
    yield _compare(text, [one, *whole, text.decode(width, text.mixed_counts(), narrower=True)])


@dataclass(frozen=True)
class Decoded:
    """One way through the text, or through its beginning: logits (tokens, vocab), and what each
    layer's cache holds."""

    logits: mx.array
    held: list[list[mx.array]]


class Text:
    """Seeded ids, a context in a cache, and the ways to decode the ids over it."""

    def __init__(self, target: Target, width: int, context: int, tokens: int, seed: int) -> None:
        for name, value in (("width", width), ("context", context), ("tokens", tokens)):
            require_positive(name, value)
        self.target, self.width, self.context = target, width, context
        self._random = random.Random(seed)
        before, self.ids = self._draw(context), self._draw(tokens)
        # Room for the last block, whose junk reaches beyond the text.
        self._cache = target.make_cache(context + tokens + width)
        for start in range(0, context, PREFILL_ROWS):
            rows = mx.array([before[start : start + PREFILL_ROWS]])
            target.forward_with_taps(rows, self._cache)
            mx.eval(cache_arrays(self._cache))
        self._last_junk = -1
        self.junk_passes = 0

    def decode(self, width: int, counts: Sequence[int], *, narrower: bool = False) -> Decoded:
        """The text over a fork of the context, in passes of `width` rows (`narrower`: of any
        number up to that), of which the next of `counts` are kept and the rest, junk, rolled
        back."""
        cache, done, logits = fork_cache(self._cache), 0, []
        for count in counts:
            keep = min(count, len(self.ids) - done)
            if keep == 0:
                break
            total = self._random.randint(keep, width) if narrower else width
            junk = self._new_junk(total - keep, self.ids[done + keep :][:1])
            rows = [*self.ids[done : done + keep], *junk]
            result = self.target.verify_rows(mx.array([rows]), cache, ())
            logits.append(self.target.logits_from_hidden(result.hidden)[0, :keep])
            self.target.rollback(cache, result.tape, keep, total - keep)
            mx.eval(logits[-1], cache_arrays(cache))
            done += keep
        return Decoded(mx.concatenate(logits), [held_rows(layer) for layer in cache])

    def ways(self, width: int) -> list[list[int]]:
        """Counts at one width: one row a pass, all, all from another base offset, mixed."""
        all_kept = [width] * len(self.ids)
        return [[1] * len(self.ids), all_kept, [1, *all_kept], self.mixed_counts(width)]

    def mixed_counts(self, width: int | None = None) -> list[int]:
        """Rows to keep a pass, drawn from 1 .. width, enough for the text."""
        most = width or self.width
        return [self._random.randint(1, most) for _ in self.ids]

    def _new_junk(self, count: int, right: Sequence[int]) -> list[int]:
        """Ids that begin neither as the text goes on nor as the junk before them: junk that is
        always the same, or right, could hide that it is seen."""
        ids = self._draw(count)
        while ids and ids[0] in (self._last_junk, *right):
            ids[0] = (ids[0] + 1) % self.target.config.vocab_size
        if ids:
            self._last_junk = ids[0]
            self.junk_passes += 1
        return ids

    def _draw(self, count: int) -> list[int]:
        vocab = self.target.config.vocab_size
        return [self._random.randrange(vocab) for _ in range(count)]


def _compare(text: Text, ways: Sequence[Decoded], width: int | None = None) -> Agreement:
    """Every later way against the first, as far as it goes; the caches where it goes to the end.

    ExactUnavailable where that would be vacuous.
    """
    first, others = ways[0], ways[1:]
    chosen = mx.argmax(first.logits, axis=-1)
    if len(text.ids) > 1 and bool(mx.all(chosen == chosen[0]).item()):
        raise ExactUnavailable(
            f"the check says nothing: the target answers token {_whole(chosen[0])} after each "
            f"of {len(text.ids)} different ids"
        )
    rows, equal, flips, largest = 0, 0, 0, 0.0
    for way in others:
        count = way.logits.shape[0]
        mine, theirs = first.logits[:count], way.logits
        same = mx.all(_same(mine, theirs), axis=-1)
        rows, equal = rows + count, equal + _whole(mx.sum(same))
        flips += _whole(mx.sum(chosen[:count] != mx.argmax(theirs, axis=-1)))
        gap = mx.abs(mine.astype(mx.float32) - theirs.astype(mx.float32))
        largest = max(largest, _number(mx.max(mx.where(mx.isnan(gap), mx.inf, gap)), same))
    top = mx.sort(first.logits.astype(mx.float32), axis=-1)[:, -2:]
    whole = [way for way in others if way.logits.shape == first.logits.shape]
    return Agreement(
        width=width or text.width,
        context=text.context,
        rows=rows,
        equal=equal,
        largest_difference=largest,
        flips=flips,
        smallest_margin=float(_item(mx.min(top[:, 1] - top[:, 0]))),
        caches=all(_same_held(first.held, way.held) for way in whole),
    )


def _same(left: mx.array, right: mx.array) -> mx.array:
    """Entry by entry; NaN equals NaN."""
    return (left == right) | (mx.isnan(left) & mx.isnan(right))


def _same_held(left: list[list[mx.array]], right: list[list[mx.array]]) -> bool:
    return all(
        len(one) == len(other)
        and all(
            bool(mx.array_equal(a, b, equal_nan=True).item())
            for a, b in zip(one, other, strict=True)
        )
        for one, other in zip(left, right, strict=True)
    )


def _number(largest: mx.array, same: mx.array) -> float:
    """The largest difference; 0 where all rows are the same, whatever NaN they hold."""
    return 0.0 if bool(mx.all(same).item()) else float(_item(largest))


def _whole(count: mx.array) -> int:
    return int(_item(count))


def _item(value: mx.array) -> Any:
    return value.item()
