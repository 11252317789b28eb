"""The text of a launch from the bodies of its steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx

from .launch import THREADS, TYPES, Kernel

FOLDER = Path(__file__).resolve().parent.parent / "kernels"
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
    WARM where the step before is not done yet: fetch weights into the cache. room: bytes that
    `shared` needs where it is more than a kernel may declare; such a body has a launch of its own.
    threads: of a block.
    """

    text: str
    files: tuple[Path, ...]
    shared: str = NOTHING
    warm: str = ""
    room: int = 0
    threads: int = THREADS


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
    parts = [primitives(), *map(_read, files)]
    parts += [f"constexpr int DEPTH = {DEPTH if several else 4};"]
    parts += [_types(function, at) for at, function in enumerate(functions)]
    parts += [_memory(functions)]
    kinds = [functions.index(step.function) for step in steps]
    parts += [_function(function, at, several) for at, function in enumerate(functions)]
    body = _calls(steps, kinds)
    if several:
        body += "if (threadIdx.x == 0 && blockIdx.x == 0) token_next[0] = token[0] + 1;\n"
    header = "\n".join(parts)
    own = functions[0].body
    digest = hashlib.sha256((header + body).encode()).hexdigest()[:16]
    return Kernel(
        f"{label}_{digest}",
        inputs,
        outputs,
        body,
        header,
        residents=2 if several else 1 if own.room else 0,
        threads=own.threads,
        room=own.room,
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
    if functions[0].body.room:
        return f'static_assert(sizeof(of_0::Held) <= {functions[0].body.room}, "room");'
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
    """The body as a function of its arguments; inlined, since with calls a drafter's layer took 1.4
    times as long."""
    place = "*(of_0::Held*)dflash::room()" if function.body.room else f"memory.of_{at}"
    lines = [f"using namespace of_{at};", f"auto& held = {place};"]
    lines += [f"{kind} {name} = given.{name};" for kind, name in function.arguments]
    warm = f"if (WARMS) {{ {function.body.warm} return; }}" if several else ""
    form = (LOOP if several else ONCE).replace("BODY", function.body.text.replace("WARM", warm))
    return (
        f"template <bool WARMS>\n__device__ __forceinline__ void step_{at}"
        f"(const of_{at}::Arguments& given) {{\n  " + "\n  ".join(lines) + f"\n{form}}}"
    )


def _calls(steps: Sequence[Signature], kinds: Sequence[int]) -> str:
    """Step after step. While a block waits it fetches what it will read first."""
    lines: list[str] = []
    first = 0
    for length, times in repeats(kinds):
        turns = [steps[first + turn * length :][:length] for turn in range(times)]
        calls = [
            _call(kinds[first + at], [turn[at] for turn in turns], first + at == 0)
            for at in range(length)
        ]
        loop = [f"#pragma unroll 1\nfor (int turn = 0; turn < {times}; ++turn) {{"]
        lines += calls if times == 1 else [*loop, *calls, "}"]
        first += length * times
    return "\n".join(lines) + "\n"


def _call(kind: int, turns: Sequence[Signature], is_first: bool) -> str:
    """One step, or the same one of every turn of a loop; only the first of a launch waits for
    nobody."""
    given, *others = [f"of_{kind}::Arguments{{{', '.join(turn.given)}}}" for turn in turns]
    lines = [f"of_{kind}::Arguments given = {given};"]
    lines += [f"if (turn == {at}) given = {other};" for at, other in enumerate(others, 1)]
    wait = f"step_{kind}<true>(given); " if turns[0].function.body.warm else ""
    wait += "dflash::Grid{(unsigned*)words}.sync();"
    if is_first:
        wait = f"if (turn) {{ {wait} }}" if others else ""
    return " ".join(["{", *lines, wait, f"step_{kind}<false>(given); }}"])


def repeats(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """kinds in pieces, [(length, times)]: from the front on what repeats most is one piece, so that
    alike layers share their code."""
    pieces: list[tuple[int, int]] = []
    at = 0
    while at < len(kinds):
        left = kinds[at:]
        best = max(
            ((length, _times(left, length)) for length in range(1, len(left) // 2 + 1)),
            key=lambda piece: piece[0] * (piece[1] - 1),
            default=(1, 1),
        )
        pieces.append(best if best[1] > 1 else (1, 1))
        at += pieces[-1][0] * pieces[-1][1]
    return pieces


def _times(kinds: Sequence[int], length: int) -> int:
    """How often the first `length` follow each other."""
    times = 1
    while kinds[times * length : (times + 1) * length] == kinds[:length]:
        times += 1
    return times


def primitives() -> str:
    """What every kernel's text begins with."""
    return _read(PRIMITIVES)


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")
