"""Steps of work that share one launch.

A launch costs the host five to twenty microseconds, by its arrays and the size of its code
(examples/gpu_bench/launch_cost.py), whatever it does. Here a GDN layer is one launch, an attention
layer three, and of tiny layers all between two attention calls: blocks that are all resident take
the pieces of a step in turn, wait for each other (`Grid` in primitives.cu) and go on to the next
step. What passes between the steps is one array, and so are most of a layer's weights (`packs.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from string import digits
from types import MappingProxyType

import mlx.core as mx

from .assemble import Body, Function, Signature, assemble, source_file
from .launch import TYPES, grid_words, resident_blocks

UNIT_BYTES = 16
"""Offsets inside an array are counted in these."""
SCRATCH = "scratch"
GROWING = ("capacity", "tiles")
"""Numbers of a step that grow with a buffer: where two are equal that is chance."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Packed:
    """An array's place in a buffer that holds several, in units of UNIT_BYTES. view: the array,
    which must live for its id to mean it, or the buffer itself where the array has its type."""

    view: mx.array
    buffer: mx.array
    offset: int


Given = mx.array | str | Packed
"""An array, a place in one, or "step.output": what a step before makes in the same launch."""
Packs = Mapping[int, Packed]
"""By the id of the array."""
NO_PACKS: Packs = MappingProxyType({})


@dataclass(frozen=True)
class Step:
    """`blocks` pieces of one body. outputs: (shape, dtype)."""

    name: str
    body: Body
    blocks: int
    inputs: Mapping[str, Given]
    outputs: Mapping[str, tuple[Shape, mx.Dtype]]
    constants: Mapping[str, int | mx.Dtype] = field(default_factory=dict)
    scalars: Mapping[str, int | float] = field(default_factory=dict)


def run_step(step: Step) -> list[mx.array]:
    """One step by itself, as many blocks as it has pieces: its outputs, lazily."""
    call = _Call(NO_PACKS)
    call.add(step, {f"{step.name}.{local}" for local in step.outputs})
    return list(call.run(step.name, step.blocks).values())


def run_steps(
    steps: Sequence[Step], token: mx.array, wanted: Collection[str], packs: Packs
) -> tuple[dict[str, mx.array], mx.array]:
    """Steps one after another in one launch: ({"step.output": array}, the next token).

    token: what the last such launch returned, (64,); see `turn`. Two of them at a time could each
    wait for room that the other has. wanted: outputs that are needed afterwards; packs: where the
    steps' inputs are parts of a buffer.
    """
    call = _Call(packs)
    for step in steps:
        call.add(step, set(wanted))
    label = "_".join(step.name.rstrip(digits) for step in steps)[:40]
    made = call.run(label, resident_blocks(), token)
    return made, made.pop("token.next")


class Turn:
    """Whose turn it is on the device: the token of the last launch of several steps."""

    def __init__(self) -> None:
        self.token = mx.zeros((64,), dtype=mx.uint32)
        mx.eval(self.token)


@cache
def turn() -> Turn:
    """The process's own; whoever launches takes the token from it and leaves the next."""
    return Turn()


class _Call:
    """The arrays and numbers of one launch, and the names that its text has for them."""

    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self._steps: list[Signature] = []
        self._arrays: dict[str, mx.array] = {}
        self._names: dict[int, str] = {}
        self._scalars: dict[str, int | float] = {}
        self._outputs: dict[str, tuple[str, Shape, mx.Dtype]] = {}  # its name in the text first
        self._made: dict[str, tuple[str, mx.Dtype]] = {}  # (expression, dtype) of "step.output"
        self._numbers: dict[tuple[str, int | float], str] = {}
        self._scratch_units = 0

    def add(self, step: Step, wanted: Collection[str]) -> None:
        """One more step; the text has its number for its name, so that other names are no other
        kernel."""
        place = f"s{len(self._steps)}"
        arguments, given = [("int", "blocks")], [f"{place}_blocks"]
        self._scalars[given[0]] = step.blocks
        for name, value in step.scalars.items():
            arguments.append(("int" if isinstance(value, int) else "float", name))
            given.append(self._number(place, name, value))
        for local, array in step.inputs.items():
            expression, dtype = self._read(f"{place}_{local}", array)
            arguments.append((f"const {TYPES[dtype]}*", local))
            given.append(expression)
        for local, (shape, dtype) in step.outputs.items():
            name = f"{step.name}.{local}"
            arguments.append((f"{TYPES[dtype]}*", local))
            given.append(self._write(f"{place}_{local}", name, shape, dtype, name in wanted))
            self._made[name] = given[-1], dtype
        function = Function(step.body, tuple(step.constants.items()), tuple(arguments))
        self._steps.append(Signature(function, tuple(given)))

    def run(self, label: str, blocks: int, token: mx.array | None = None) -> dict[str, mx.array]:
        """The wanted outputs, lazily; with a token also the next, as "token.next"."""
        outputs = dict(self._outputs)
        if self._scratch_units:
            words = self._scratch_units * UNIT_BYTES // mx.uint32.size
            outputs[SCRATCH] = (SCRATCH, (words,), mx.uint32)
        arrays = dict(self._arrays)
        if token is not None:
            arrays |= {"token": token, "words": grid_words()}
            outputs["token.next"] = ("token_next", token.shape, mx.uint32)
        names = tuple(name for name, _, _ in outputs.values())
        kernel = assemble(label, tuple(self._steps), tuple(arrays), names, token is not None)
        made = kernel(
            inputs=list(arrays.values()),
            blocks=blocks,
            output_shapes=[shape for _, shape, _ in outputs.values()],
            output_dtypes=[dtype for _, _, dtype in outputs.values()],
            scalars=self._scalars,
        )
        found = dict(zip(outputs, made, strict=True))
        found.pop(SCRATCH, None)
        return found

    def _read(self, name: str, given: Given) -> tuple[str, mx.Dtype]:
        if isinstance(given, str):
            return self._made[given]
        if isinstance(given, Packed):
            packed = given
        elif (known := self._packs.get(id(given))) is not None:
            packed = known
        else:
            return self._name(name, given), given.dtype
        dtype = packed.view.dtype
        self._scalars[f"{name}_at"] = packed.offset
        buffer = self._name(f"packed_{len(self._arrays)}", packed.buffer)
        return _inside(f"const {TYPES[dtype]}", buffer, f"{name}_at"), dtype

    def _number(self, place: str, name: str, value: int | float) -> str:
        """Each number is handed over once, as the host pays for every one."""
        found = f"{place}_{name}"
        if name not in GROWING:
            found = self._numbers.setdefault((name, value), found)
        self._scalars[found] = value
        return found

    def _name(self, name: str, array: mx.array) -> str:
        """Each array is handed over once."""
        if id(array) not in self._names:
            self._names[id(array)] = name
            self._arrays[name] = array
        return self._names[id(array)]

    def _write(self, place: str, name: str, shape: Shape, dtype: mx.Dtype, wanted: bool) -> str:
        if wanted:
            self._outputs[name] = (place, shape, dtype)
            return place
        self._scalars[f"{place}_at"] = self._scratch_units
        size = dtype.size
        for count in shape:
            size *= count
        self._scratch_units += -(-size // 128) * (128 // UNIT_BYTES)
        return _inside(TYPES[dtype], SCRATCH, f"{place}_at")


def _inside(kind: str, buffer: str, offset: str) -> str:
    """A pointer into a buffer."""
    char = "const char" if kind.startswith("const") else "char"
    return f"({kind}*)(({char}*){buffer} + size_t({offset}) * {UNIT_BYTES})"


__all__ = [
    "NO_PACKS",
    "Body",
    "Given",
    "Packed",
    "Packs",
    "Step",
    "run_step",
    "run_steps",
    "source_file",
]
