"""How an MTP head's norm weights are stored: as they are, or less one, as the original files do.

Nothing in a file says so, and converters have mixed the two. Each tensor is judged by its own
values; what these cannot tell follows from the others, or is an error that asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import mlx.core as mx

from ...core.errors import TensorError
from ...core.options import MtpNorms

NormForm = MtpNorms
"""raw: less one; shifted: one was added, so that they are used as they are."""
HEAD_NORMS = ("q_norm.weight", "k_norm.weight")
LAST_NORM = "norm.weight"
RAW_BELOW = {True: 0.9, False: 0.4}
SHIFTED_ABOVE = {True: 1.35, False: 0.6}
"""Means, of query and key norms (True) and of the others. In healthy heads the first are about 0.8
raw and 1.8 shifted, the others about 0 and 1; a mean between the bounds says nothing by itself."""


def norms_of(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The norm weights among a head's arrays, by name."""
    return {name: array for name, array in arrays.items() if array.ndim == 1 and "norm" in name}


def judge_norms(arrays: Mapping[str, mx.array], where: object) -> dict[str, NormForm]:
    """The form of every norm weight of a head, by its values.

    where: the file, for the message. Raises TensorError, which names the tensors, where the values
    do not tell.
    """
    means = {name: _mean(array) for name, array in norms_of(arrays).items()}
    sure = {name: form for name, mean in means.items() if (form := _form(name, mean)) is not None}
    unsure = sorted(means.keys() - sure.keys())
    told = {name: _from_others(name, sure) for name in unsure}
    lost = [f"{name} (mean {means[name]:.2f})" for name in unsure if told[name] is None]
    if lost:
        raise TensorError(
            f"{where}: the values of {', '.join(lost)} do not tell whether the MTP head's norms "
            "are stored less one, and the others contradict each other; say it by --mtp-norms raw "
            "or --mtp-norms shifted, or take the original repository's head"
        )
    return sure | {name: form for name, form in told.items() if form is not None}


def shift_norms(
    arrays: dict[str, mx.array], where: object, stated: NormForm | None = None
) -> dict[str, mx.array]:
    """The arrays with every norm weight as it is used; stated: of all, in place of the values'."""
    norms = norms_of(arrays)
    forms = judge_norms(arrays, where) if stated is None else dict.fromkeys(norms, stated)
    # In float32: 1 + w loses bits of a small w in bfloat16.
    made = {
        name: array.astype(mx.float32) + 1.0
        for name, array in norms.items()
        if forms[name] == "raw"
    }
    return arrays | made


def _form(name: str, mean: float) -> NormForm | None:
    """What one tensor's mean tells; the last norm's is large in both forms, so only a small one
    tells anything."""
    is_head = name.endswith(HEAD_NORMS)
    if mean < RAW_BELOW[is_head]:
        return "raw"
    if mean > SHIFTED_ABOVE[is_head] and name != LAST_NORM:
        return "shifted"
    return None


def _from_others(name: str, sure: Mapping[str, NormForm]) -> NormForm | None:
    """What most of its like say, else what all others say; None where they contradict."""
    is_head = name.endswith(HEAD_NORMS)
    like = [form for other, form in sure.items() if other.endswith(HEAD_NORMS) == is_head]
    return _most(like) if like else _most(list(sure.values()))


def _most(forms: Collection[NormForm]) -> NormForm | None:
    raw = sum(form == "raw" for form in forms)
    shifted = len(forms) - raw
    if raw == shifted:
        return None
    return "raw" if raw > shifted else "shifted"


def _mean(array: mx.array) -> float:
    mean: Any = array.astype(mx.float32).mean().item()
    return float(mean)
