"""The text of a launch from the bodies of its steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx

from .launch import TYPES, Kernel

FOLDER = Path(__file__).resolve().parent
NOTHING = "dflash::Nothing"
DEPTH = 2
"""Steps of loads of bfloat16 weights under way in a launch of several steps: with more, what two
blocks a multiprocessor may have of registers is spilled."""

Constants = tuple[tuple[str, int | mx.Dtype], ...]


def source_file(name: str) -> Path:
    """A .cu file beside this one."""
    return FOLDER / f"{name}.cu"


PRIMITIVES = source_file("primitives")


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
class Function:
    """A body with its constants, and the types of what it is given; steps that are alike share
    one. arguments: (type, name)."""

    body: Body
    constants: Constants
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Signature:
    """What of a step is in the text of its launch. given: its arguments there."""

    function: Function
    given: tuple[str, ...]


@cache
def assemble(
    label: str,
    steps: tuple[Signature, ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    several: bool,
) -> Kernel:
    """The kernel of a launch; its name holds its text, since MLX keeps kernels by name."""
    functions = list(dict.fromkeys(step.function for step in steps))
    files = dict.fromkeys(file for function in functions for file in function.body.files)
    parts = [_read(file) for file in (PRIMITIVES, *files)]
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
        inputs,
        outputs,
        body,
        header,
        residents=2 if several else 0,
    )


def _types(function: Function, at: int) -> str:
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


def _memory(functions: Sequence[Function]) -> str:
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


def _function(function: Function, at: int, several: bool) -> str:
    """The body as a function of its arguments."""
    lines = [f"using namespace of_{at};", f"auto& held = memory.of_{at};"]
    lines += [f"{kind} {name} = given.{name};" for kind, name in function.arguments]
    warm = f"if (WARMS) {{ {function.body.warm} return; }}" if several else ""
    form = (LOOP if several else ONCE).replace("BODY", function.body.text.replace("WARM", warm))
    return (
        f"template <bool WARMS>\n__device__ __forceinline__ void step_{at}"
        f"(const of_{at}::Arguments& given) {{\n  " + "\n  ".join(lines) + f"\n{form}}}"
    )


def _calls(steps: Sequence[Signature], functions: Sequence[Function]) -> str:
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
