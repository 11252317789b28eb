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
DEPTH = 2
"""Steps of loads of bfloat16 weights under way in a launch of several steps: with more, what two
blocks a multiprocessor may have of registers is spilled."""

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
    """A body with its constants, and the types of what it is given; steps that are alike share
    one. arguments: (type, name)."""

    body: Body
    constants: Constants
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Signature:
    """What of a step is in the text of its launch. given: its arguments' names there; made: those
    of its outputs."""

    function: _Function
    given: tuple[str, ...]
    made: tuple[str, ...]


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
    dtypes: dict[str, mx.Dtype] = {}
    signatures = [_sign(step, arrays, names, dtypes) for step in steps]
    label = "_".join(step.name for step in steps)[:40]
    kernel = _assemble(label, tuple(signatures), bool(extra))
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


def _sign(
    step: Step, arrays: list[mx.array], names: dict[int, str], dtypes: dict[str, mx.Dtype]
) -> _Signature:
    """The signature, and the step's arrays put behind those before it, each once. dtypes: of what
    the steps so far make."""
    arguments, given = [("int", "blocks")], [f"{step.name}_blocks"]
    for name, value in step.scalars.items():
        arguments.append(("int" if isinstance(value, int) else "float", name))
        given.append(f"{step.name}_{name}")
    for local, array in step.inputs.items():
        if isinstance(array, str):
            name, dtype = array.replace(".", "_"), dtypes[array]
        else:
            if id(array) not in names:
                names[id(array)] = f"{step.name}_{local}"
                arrays.append(array)
            name, dtype = names[id(array)], array.dtype
        arguments.append((f"const {TYPES[dtype]}*", local))
        given.append(name)
    made = [f"{step.name}_{local}" for local in step.outputs]
    for local, (_, dtype) in step.outputs.items():
        arguments.append((f"{TYPES[dtype]}*", local))
        dtypes[f"{step.name}.{local}"] = dtype
    function = _Function(step.body, tuple(step.constants.items()), tuple(arguments))
    return _Signature(function, (*given, *made), tuple(made))


@cache
def _assemble(label: str, steps: tuple[_Signature, ...], several: bool) -> Kernel:
    """The kernel of a launch; its name holds its text, since MLX keeps kernels by name."""
    outputs = [name for step in steps for name in step.made]
    pointers = [
        name
        for step in steps
        for name, (kind, _) in zip(step.given, step.function.arguments, strict=True)
        if kind.endswith("*")
    ]
    made = set(outputs)
    inputs = [name for name in dict.fromkeys(pointers) if name not in made]
    functions = list(dict.fromkeys(step.function for step in steps))
    files = dict.fromkeys(file for function in functions for file in function.body.files)
    parts = [_read(file) for file in (source_file("primitives"), *files)]
    parts += [f"constexpr int DEPTH = {DEPTH if several else 4};"]
    parts += [_types(function, at) for at, function in enumerate(functions)]
    parts += [_memory(functions)]
    parts += [_function(function, at, several) for at, function in enumerate(functions)]
    body = _calls(steps, functions)
    if several:
        body += "if (threadIdx.x == 0 && blockIdx.x == 0) token_next[0] = token[0] + 1;\n"
    header = "\n".join(parts)
    digest = hashlib.sha256((header + body).encode()).hexdigest()[:16]
    return Kernel(
        f"{label}_{digest}",
        (*inputs, *(["token", "words"] if several else [])),
        (*outputs, *(["token_next"] if several else [])),
        body,
        header,
        residents=2 if several else 0,
    )


def _types(function: _Function, at: int) -> str:
    """A function's constants, its arguments and what it has in shared memory."""
    lines = [
        f"constexpr int {name} = {value};"
        if isinstance(value, int)
        else f"using {name} = {TYPES[value]};"
        for name, value in function.constants
    ]
    lines.append(f"using Held = {function.body.shared};")
    members = " ".join(f"{kind} {name};" for kind, name in function.arguments)
    lines.append(f"struct Arguments {{ {members} }};")
    return f"namespace of_{at} {{\n" + "\n".join(lines) + "\n}"


def _memory(functions: Sequence[_Function]) -> str:
    """Shared memory that the steps use in turn."""
    held = " ".join(f"of_{at}::Held of_{at};" for at in range(len(functions)))
    return f"union alignas(16) Memory {{ {held} }};\n__shared__ Memory memory;"


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
    """The body as a function of its arguments."""
    lines = [f"using namespace of_{at};", f"auto& held = memory.of_{at};"]
    lines += [f"{kind} {name} = given.{name};" for kind, name in function.arguments]
    warm = f"if (WARMS) {{ {function.body.warm} return; }}" if several else ""
    form = (LOOP if several else ONCE).replace("BODY", function.body.text.replace("WARM", warm))
    return (
        f"template <bool WARMS>\n__device__ __forceinline__ void step_{at}"
        f"(const of_{at}::Arguments& given) {{\n  " + "\n  ".join(lines) + f"\n{form}}}"
    )


def _calls(steps: Sequence[_Signature], functions: Sequence[_Function]) -> str:
    """Step after step. While a block waits it fetches what it will read first."""
    lines = []
    for index, step in enumerate(steps):
        at = functions.index(step.function)
        given = f"({{{', '.join(step.given)}}});"
        if index:
            warm = [f"step_{at}<true>{given}"] if step.function.body.warm else []
            lines += [*warm, "dflash::Grid{(unsigned*)words}.sync();"]
        lines.append(f"step_{at}<false>{given}")
    return "\n".join(lines) + "\n"


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")
