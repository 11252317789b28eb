"""The tape of one verified block, and the rollback that replays it.

Everything is checked, and every new state built, before the first cache is touched: a call that
fails leaves the caches bitwise as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RollbackError
from .layer_caches import can_drop, class_of, kind_of, offset_of
from .recurrent import Held

ReplayLayers = Callable[[Sequence[Any], int], Sequence[Held | None]]
"""(tapes per layer, rows to keep) -> per layer (window, state), or the cut that gives them."""


@dataclass(frozen=True)
class Tape:
    """One block: `rows` rows fed from absolute position `offset_init`; one entry per layer,
    None for attention layers. The last `padding` rows are filler, and are always rolled back."""

    rows: int
    offset_init: int
    layers: tuple[Any, ...]
    padding: int = 0


def check_counts(n_accepted: int, kv_rollback: int) -> None:
    """A positive kept prefix and a non-negative rest, both whole numbers."""
    for name, value in (("committed prefix", n_accepted), ("rollback count", kv_rollback)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise RollbackError(f"tape {name} must be a whole number, got {value!r}")
    if n_accepted <= 0:
        raise RollbackError(f"tape rollback requires a positive committed prefix, got {n_accepted}")
    if kv_rollback < 0:
        raise RollbackError(f"tape rollback count must be non-negative, got {kv_rollback}")


def replay_tape(
    gdn_layers: Sequence[Any | None],
    cache: Sequence[Any],
    tape: Tape,
    n_accepted: int,
    kv_rollback: int,
    replay_layers: ReplayLayers,
) -> None:
    """Leave `cache` as if only the block's first `n_accepted` rows had been fed.

    gdn_layers: the target's GDN module per layer, None for attention. kv_rollback: rows to drop,
    so that n_accepted + kv_rollback is the block. replay_layers: the backbone's own replay.
    Raises RollbackError, with nothing changed.
    """
    check_counts(n_accepted, kv_rollback)
    if not len(gdn_layers) == len(cache) == len(tape.layers):
        raise RollbackError(
            f"tape transaction layer mismatch: model={len(gdn_layers)} cache={len(cache)} "
            f"tapes={len(tape.layers)}"
        )
    if n_accepted + kv_rollback != tape.rows:
        raise RollbackError(
            f"tape holds {tape.rows} rows, but {n_accepted} accepted + {kv_rollback} rolled back "
            f"make {n_accepted + kv_rollback}"
        )
    for index, (layer, entry, record) in enumerate(
        zip(gdn_layers, cache, tape.layers, strict=True)
    ):
        _check_layer(index, layer, entry, record, tape, kv_rollback)
    if kv_rollback == 0:
        return
    restored = replay_layers(tape.layers, n_accepted)
    pairs = list(zip(cache, restored, strict=True))
    for index, (entry, held) in enumerate(pairs):
        if not class_of(entry).can_go_back(entry, kv_rollback, held):
            raise RollbackError(f"layer {index} cannot go back by {kv_rollback} rows")
    for entry, held in pairs:  # nothing below can fail
        class_of(entry).go_back(entry, kv_rollback, held)


def _check_layer(
    index: int,
    layer: Any | None,
    entry: Any,
    record: Any | None,
    tape: Tape,
    kv_rollback: int,
) -> None:
    if layer is None and record is not None:
        raise RollbackError(f"attention layer {index} has a rollback tape; only GDN layers do")
    if layer is not None and record is None:
        raise RollbackError(f"GDN layer {index} is missing its rollback tape")
    expected = "KV" if layer is None else "recurrent"
    if kind_of(entry) != expected:
        raise RollbackError(f"layer {index} needs a {expected} cache, got {type(entry).__name__}")
    if record is not None and record.rows != tape.rows:
        raise RollbackError(
            f"the tape of GDN layer {index} holds {record.rows} rows, expected {tape.rows}"
        )
    offset = offset_of(entry)
    if offset is not None and offset != tape.offset_init + tape.rows:
        raise RollbackError(
            f"layer {index} stands at {offset} tokens, but the tape's block ends at "
            f"{tape.offset_init + tape.rows}: the cache has moved since"
        )
    if record is None and not can_drop(entry, kv_rollback):
        raise RollbackError(f"layer {index} holds {offset} tokens, cannot drop {kv_rollback}")
    if record is not None and not class_of(entry).holds(entry, record.left):
        raise RollbackError(
            f"GDN layer {index} no longer holds what the tape's block left there: the tape "
            "belongs to another cache or to an earlier block"
        )
