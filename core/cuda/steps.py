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
    and scalars by name. files: what it calls, beside primitives.cu.
    """

    text: str
    files: tuple[Path, ...]
    shared: str = NOTHING


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
class _Signature:
    """What of a step is in the text of its launch."""

    name: str
    body: Body
    inputs: tuple[tuple[str, str], ...]  # (local name, name in the launch)
    outputs: tuple[str, ...]
    constants: Constants
    scalars: tuple[str, ...]


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
    inputs = []
    for local, given in step.inputs.items():
        if isinstance(given, str):
            inputs.append((local, given.replace(".", "_")))
            continue
        if id(given) not in names:
            names[id(given)] = f"{step.name}_{local}"
            arrays.append(given)
        inputs.append((local, names[id(given)]))
    return _Signature(
        step.name,
        step.body,
        tuple(inputs),
        tuple(step.outputs),
        tuple(step.constants.items()),
        tuple(step.scalars),
    )


@cache
def _assemble(steps: tuple[_Signature, ...], several: bool) -> Kernel:
    """The kernel of a launch; its name holds its text, since MLX keeps kernels by name."""
    made = {f"{step.name}_{local}" for step in steps for local in step.outputs}
    inputs = dict.fromkeys(name for step in steps for _, name in step.inputs if name not in made)
    outputs = [f"{step.name}_{local}" for step in steps for local in step.outputs]
    if several:
        body = _memory(steps) + "dflash::Grid{(unsigned*)words}.sync();\n".join(
            _step_text(step, LOOP) for step in steps
        )
        body += "if (threadIdx.x == 0 && blockIdx.x == 0) token_next[0] = token[0] + 1;\n"
    else:
        body = _memory(steps) + _step_text(steps[0], ONCE)
    files = dict.fromkeys(file for step in steps for file in step.body.files)
    header = "\n".join(_read(file) for file in (source_file("primitives"), *files))
    header += "\n" + "".join(map(_constants, steps))
    digest = hashlib.sha256((header + body).encode()).hexdigest()[:16]
    label = "_".join(step.name for step in steps)[:40]
    return Kernel(
        f"{label}_{digest}",
        (*inputs, *(["token", "words"] if several else [])),
        (*outputs, *(["token_next"] if several else [])),
        body,
        header,
        residents=2 if several else 0,
    )


def _memory(steps: Sequence[_Signature]) -> str:
    """Shared memory that the steps use in turn."""
    members = " ".join(f"step_{step.name}::Held {step.name};" for step in steps)
    return f"union alignas(16) Memory {{ {members} }};\n__shared__ Memory memory;\n"


def _constants(step: _Signature) -> str:
    """A step's constants and its type of shared memory, in a namespace of its own."""
    lines = [
        f"constexpr int {name} = {value};"
        if isinstance(value, int)
        else f"using {name} = {TYPES[value]};"
        for name, value in step.constants
    ]
    lines.append(f"using Held = {step.body.shared};")
    return f"namespace step_{step.name} {{\n" + "\n".join(lines) + "\n}\n"


ONCE = """{
  const int block = blockIdx.x;
  constexpr bool first = true;
  BODY
}
"""
LOOP = """for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
  const bool first = block == int(blockIdx.x);
  BODY
  __syncthreads();
}
"""


def _step_text(step: _Signature, form: str) -> str:
    lines = [f"using namespace step_{step.name};", f"auto& held = memory.{step.name};"]
    lines += [f"const auto* {local} = {name};" for local, name in step.inputs]
    lines += [f"auto* {local} = {step.name}_{local};" for local in step.outputs]
    lines += [f"const auto {name} = {step.name}_{name};" for name in (*step.scalars, "blocks")]
    return "{\n" + "\n".join(lines) + "\n" + form.replace("BODY", step.body.text) + "}\n"


@cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")
