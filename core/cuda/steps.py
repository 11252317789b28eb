"""Steps of work that share one launch.

A launch costs the host about ten microseconds, whatever it does, so that a layer of five launches
waits for its host. Here a layer is one launch: blocks that are all resident take the pieces of a
step in turn, wait for each other (`Grid` in primitives.cu) and go on to the next step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import mlx.core as mx

from .launch import TYPES, Kernel, grid_words, resident_blocks

FOLDER = Path(__file__).resolve().parent
NOTHING = "dflash::Nothing"

Shape = tuple[int, ...]
Constants = tuple[tuple[str, int | mx.Dtype], ...]


@dataclass(frozen=True)
class Body:
    """CUDA text that computes one piece of a step.

    It sees `block`, the piece's number; `first`, whether this block of threads takes its first
    piece; `held`, a `shared` in shared memory, kept from piece to piece; and its arrays, constants
    and scalars by name. files: what it calls, beside primitives.cu. warm: what to do at the marker
    WARM where the step before is not done yet: fetch weights into the cache.
    """

    text: str
    files: tuple[Path, ...]
    shared: str = NOTHING
    warm: str = ""


@dataclass(frozen=True)
class Step:
    """`blocks` pieces of one body. inputs: an array, or "step.output" that a step before wrote;
    outputs: (shape, dtype)."""

    name: str
    body: Body
    blocks: int
    inputs: Mapping[str, mx.array | str]
    outputs: Mapping[str, tuple[Shape, mx.Dtype]]
    constants: Mapping[str, int | mx.Dtype] = field(default_factory=dict)
    scalars: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Function:
    """The device function of a body with its constants; steps that are alike share one."""

    body: Body
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Constants
    scalars: tuple[tuple[str, str], ...]  # (name, type)


@dataclass(frozen=True)
class _Signature:
    """What of a step is in the text of its launch. given: its inputs' names there."""

    name: str
    function: _Function
    given: tuple[str, ...]


def source_file(name: str) -> Path:
    """A .cu file beside this one."""
    return FOLDER / f"{name}.cu"


def run_step(step: Step) -> list[mx.array]:
    """One step by itself, as many blocks as it has pieces: its outputs, lazily."""
    return list(_launch([step], step.blocks, []).values())


def run_steps(steps: Sequence[Step], token: mx.array) -> tuple[dict[str, mx.array], mx.array]:
    """Steps one after another in one launch: ({"step.output": array}, the next token).

    token: what the last such launch returned, (1,); see `turn`. Two of them at a time could each
    wait for room that the other has.
    """
    extra = {"token": token, "words": grid_words()}
    made = _launch(steps, resident_blocks(), [*extra.items()])
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


def _launch(
    steps: Sequence[Step], blocks: int, extra: Sequence[tuple[str, mx.array]]
) -> dict[str, mx.array]:
    arrays: list[mx.array] = []
    names: dict[int, str] = {}
    signatures = [_sign(step, arrays, names) for step in steps]
    kernel = _assemble(tuple(signatures), bool(extra))
    outputs = {
        f"{step.name}.{local}": output for step in steps for local, output in step.outputs.items()
    }
    if extra:
        outputs["token.next"] = ((64,), mx.uint32)
    scalars: dict[str, int | float] = {}
    for step in steps:
        scalars |= {f"{step.name}_{name}": value for name, value in step.scalars.items()}
        scalars[f"{step.name}_blocks"] = step.blocks
    made = kernel(
        inputs=[*arrays, *(array for _, array in extra)],
        blocks=blocks,
        output_shapes=[shape for shape, _ in outputs.values()],
        output_dtypes=[dtype for _, dtype in outputs.values()],
        scalars=scalars,
    )
    return dict(zip(outputs, made, strict=True))


def _sign(step: Step, arrays: list[mx.array], names: dict[int, str]) -> _Signature:
    """The signature, and the step's arrays put behind those before it, each once."""
    inputs: list[str] = []
    for local, given in step.inputs.items():
        if isinstance(given, str):
            inputs.append(given.replace(".", "_"))
            continue
        if id(given) not in names:
            names[id(given)] = f"{step.name}_{local}"
            arrays.append(given)
        inputs.append(names[id(given)])
    scalars = [(n, "int" if isinstance(v, int) else "float") for n, v in step.scalars.items()]
    function = _Function(
        step.body,
        tuple(step.inputs),
        tuple(step.outputs),
        tuple(step.constants.items()),
        tuple(scalars),
    )
    return _Signature(step.name, function, tuple(inputs))


@cache
def _assemble(steps: tuple[_Signature, ...], several: bool) -> Kernel:
    """The kernel of a launch; its name holds its text, since MLX keeps kernels by name."""
    outputs = [f"{step.name}_{local}" for step in steps for local in step.function.outputs]
    inputs = dict.fromkeys(
        name for step in steps for name in step.given if name not in set(outputs)
    )
    functions = list(dict.fromkeys(step.function for step in steps))
    calls = ""
    for index, step in enumerate(steps):
        at, warms = functions.index(step.function), bool(step.function.body.warm)
        if index and warms:
            calls += _call(step, at, "true")
        if index:
            calls += "dflash::Grid{(unsigned*)words}.sync();\n"
        calls += _call(step, at, "false")
    if several:
        calls += "if (threadIdx.x == 0 && blockIdx.x == 0) token_next[0] = token[0] + 1;\n"
    files = dict.fromkeys(file for function in functions for file in function.body.files)
    parts = [_read(file) for file in (source_file("primitives"), *files)]
    parts += [_constants(function, at) for at, function in enumerate(functions)]
    parts += [_memory(len(functions))]
    parts += [_function(function, at, several) for at, function in enumerate(functions)]
    header = "\n".join(parts)
    digest = hashlib.sha256((header + calls).encode()).hexdigest()[:16]
    label = "_".join(step.name for step in steps)[:40]
    return Kernel(
        f"{label}_{digest}",
        (*inputs, *(["token", "words"] if several else [])),
        (*outputs, *(["token_next"] if several else [])),
        calls,
        header,
        residents=2 if several else 0,
    )


def _call(step: _Signature, at: int, warm: str) -> str:
    function = step.function
    made = [f"{step.name}_{local}" for local in function.outputs]
    numbers = [f"{step.name}_{name}" for name in ("blocks", *(n for n, _ in function.scalars))]
    return f"step_{at}({', '.join([warm, *numbers, *step.given, *made])});\n"


def _constants(function: _Function, at: int) -> str:
    """A function's constants and its type of shared memory, in a namespace of its own."""
    lines = [
        f"constexpr int {name} = {value};"
        if isinstance(value, int)
        else f"using {name} = {TYPES[value]};"
        for name, value in function.constants
    ]
    lines.append(f"using Held = {function.body.shared};")
    return f"namespace constants_{at} {{\n" + "\n".join(lines) + "\n}"


def _memory(functions: int) -> str:
    """Shared memory that the steps use in turn."""
    members = " ".join(f"constants_{at}::Held of_{at};" for at in range(functions))
    return f"union alignas(16) Memory {{ {members} }};\n__shared__ Memory memory;"


ONCE = """  const int block = blockIdx.x;
  constexpr bool first = true;
BODY
"""
LOOP = """  for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
    const bool first = block == int(blockIdx.x);
BODY
    __syncthreads();
  }
"""


def _function(function: _Function, at: int, several: bool) -> str:
    """Not inlined where there are others, so that each has the registers to itself."""
    types = [f"typename T_{local}" for local in (*function.inputs, *function.outputs)]
    parameters = ["bool warm", "int blocks", *(f"{kind} {n}" for n, kind in function.scalars)]
    parameters += [f"const T_{local}* {local}" for local in function.inputs]
    parameters += [f"T_{local}* {local}" for local in function.outputs]
    warm = f"if (warm) {{ {function.body.warm} return; }}" if several else ""
    body = function.body.text.replace("WARM", warm)
    return (
        f"template <{', '.join(types)}>\n"
        f"__device__ {'__noinline__' if several else '__forceinline__'} void step_{at}(\n  "
        + ", ".join(parameters)
        + f") {{\n  using namespace constants_{at};\n  auto& held = memory.of_{at};\n"
        + (LOOP if several else ONCE).replace("BODY", body)
        + "}"
    )


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")
