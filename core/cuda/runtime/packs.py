"""Weights side by side: a layer's in one buffer, a projection of several layers as one matrix.

So a launch is handed one array for them. The layers' own arrays become views: nothing is held
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ...errors import DeviceError
from .steps import NO_PACKS, UNIT_BYTES, Packed, Packs

ALIGNMENT_BYTES = 256
WORD = mx.uint32


def pack_layers(layers: Iterable[Any], known: Packs = NO_PACKS) -> dict[int, Packed]:
    """Pack each layer's arrays but those that are `known` to be packed; by the id of the view that
    the layer has from then on. One layer at a time, so that no more than one is there twice."""
    packs: dict[int, Packed] = {}
    for layer in layers:
        held: Any = tree_flatten(layer.parameters())
        packs |= _pack(layer, {path: array for path, array in held if id(array) not in known})
    return packs


def join_outputs(modules: Sequence[Any]) -> tuple[Any, dict[int, Packed]]:
    """(one projection with all their outputs in a row, packs): the arrays of linear layers of one
    kind and size become parts of its arrays."""
    whole = copy(modules[0])
    packs: dict[int, Packed] = {}
    for name in whole.parameters():
        joined = mx.concatenate([module[name] for module in modules])
        setattr(whole, name, joined)
        views = mx.split(joined, len(modules))
        mx.eval(joined, views)
        for index, (module, view) in enumerate(zip(modules, views, strict=True)):
            setattr(module, name, view)
            units, odd = divmod(index * view.nbytes, UNIT_BYTES)
            if odd:
                raise DeviceError(
                    f"the outputs of a projection begin {index * view.nbytes} bytes into its "
                    f"matrix, which the suite's kernels address by {UNIT_BYTES}; use --kernels "
                    "stock"
                )
            packs[id(view)] = Packed(view, joined, units)
    return whole, packs


def _pack(layer: Any, held: dict[str, mx.array]) -> dict[int, Packed]:
    parts: list[mx.array] = []
    places: dict[str, int] = {}
    at = 0  # in words
    for path, array in held.items():
        if array.nbytes % WORD.size:
            continue
        words = array.flatten().view(WORD)
        places[path] = at
        padding = -words.size % (ALIGNMENT_BYTES // WORD.size)
        parts += [words, mx.zeros((padding,), dtype=WORD)]
        at += words.size + padding
    if not places:
        return {}
    buffer = mx.concatenate(parts)
    views = {
        path: buffer[start : start + held[path].nbytes // WORD.size]
        .view(held[path].dtype)
        .reshape(held[path].shape)
        for path, start in places.items()
    }
    mx.eval(buffer, views)
    layer.update(tree_unflatten(list(views.items())))
    scale = UNIT_BYTES // WORD.size
    return {id(view): Packed(view, buffer, places[path] // scale) for path, view in views.items()}
