"""A drafter file's tensors against those that its config.json asks for: names, shapes, dtypes.

Works on headers; no array is read here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...core.checkpoint.safetensors_headers import TensorInfo, listing
from ...core.errors import TensorError
from .config import DrafterConfig
from .quantization import Packing, infer_packing

PREFIX = "model."
CODEBOOK = "_codebook.weight"
FLOATS = ("BF16", "F16", "F32")
FOREIGN: dict[str, str] = {
    "encoder.fc.": "a Muse assistant container",
    "aux_hidden_norms.": "a Laguna drafter",
    ".g_proj.": "a drafter with gated heads (Laguna)",
    ".qkv_proj.": "a drafter with fused projections (Laguna, MiMo)",
    ".sinks": "a drafter with attention sinks (MiMo)",
    "attention_sink_bias": "a drafter with attention sinks (MiMo)",
    "mask_embed": "a drafter with a mask embedding of its own (Domino)",
    "markov_": "a DSpark drafter",
    "weight_packed": "quantized by compressed-tensors, which MLX does not read",
    "weight_scale": "quantized by another runtime (FP8, NVFP4), which MLX does not read",
    "d2t": "a drafter with a vocabulary of its own (speculators)",
    "t2d": "a drafter with a vocabulary of its own (speculators)",
    "lm_head.": "a drafter with a head of its own (speculators)",
    "embed_tokens.": "a drafter with an embedding of its own (speculators)",
}
"""What part of a tensor's name tells of the file's maker."""


def module_name(tensor: str) -> str:
    """A tensor's name in the modules: some trainers prefix `model.`, and converted files have
    `.weight` after the two codebooks."""
    name = tensor.removeprefix(PREFIX)
    return name.removesuffix(".weight") if name.endswith(CODEBOOK) else name


def module_path(name: str) -> str:
    """`fc.weight` -> `fc`; a codebook is its own path."""
    return name.removesuffix(".weight")


def packings_of(
    expected: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    in_bytes: Collection[str],
) -> dict[str, Packing]:
    """The packed modules of a file, by path: those with `.scales`, told by their shapes.

    in_bytes: names of uint8 tensors. A module whose shapes tell no packing is left out, so that
    its shape is an error.
    """
    found = {}
    for name, shape in expected.items():
        path = module_path(name)
        scales = shapes.get(f"{path}.scales")
        if scales is None or name not in shapes or len(shape) != 2:
            continue
        packing = infer_packing(shape[1], shapes[name], scales, f"{path}.scales" in in_bytes)
        if packing is not None:
            found[path] = packing
    return found


def check_tensors(
    config: DrafterConfig,
    headers: Mapping[str, TensorInfo],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    """Compare names, shapes and dtypes of the files with what the config asks for.

    expected: of the unpacked modules. Raises TensorError, which says so where a left-over tensor
    tells whose file it is.
    """
    found = {module_name(name): info for name, info in headers.items()}
    packings = packings_of(
        expected,
        {name: info.shape for name, info in found.items()},
        {name for name, info in found.items() if info.dtype == "U8"},
    )
    wanted = packed_shapes(expected, packings)
    extra = sorted(set(found) - set(wanted))
    problems = [*_twice(headers), *_compare(found, wanted, extra)]
    problems += _dtypes(found, wanted, packings)
    problems += _packing_problems(config, packings, {module_path(name) for name in expected})
    if problems:
        raise TensorError(
            f"{config.path}: the tensors are not those of this {config.kind} config.json: "
            + "; ".join(problems)
            + _advice(extra)
        )


def _packing_problems(
    config: DrafterConfig, packings: Mapping[str, Packing], modules: Collection[str]
) -> list[str]:
    """What the `quantization` block says of single modules, and is not so."""
    stated = config.quantization
    problems = []
    for path, packing in stated.overrides.items():
        if path not in modules:
            problems.append(f"config.json says how {path} is packed, and there is no such module")
        elif path not in packings:
            problems.append(f"{path} is not packed, config.json says {packing}")
        elif packings[path] != packing:
            problems.append(f"{path} is packed as {packings[path]}, config.json says {packing}")
    for path in stated.unpacked:
        if path in packings:
            problems.append(
                f"{path} is packed as {packings[path]}, config.json says that it is not"
            )
        elif path not in modules:
            problems.append(f"config.json leaves {path} as it is, and there is no such module")
    return problems


def packed_shapes(
    expected: Mapping[str, tuple[int, ...]], packings: Mapping[str, Packing]
) -> dict[str, tuple[int, ...]]:
    """`expected` with the parts of every packed module in place of its weight."""
    wanted: dict[str, tuple[int, ...]] = {}
    for name, shape in expected.items():
        packing = packings.get(module_path(name)) if len(shape) == 2 else None
        if packing is None:
            wanted[name] = shape
            continue
        parts = packing.part_shapes(*shape)
        wanted[name] = parts.pop("weight")
        wanted |= {f"{module_path(name)}.{part}": size for part, size in parts.items()}
    return wanted


def _advice(extra: list[str]) -> str:
    for part, what in FOREIGN.items():
        if any(part in f".{name}" for name in extra):
            return (
                f". This looks like {what}: give a drafter in z-lab's layout, in bfloat16 or "
                "packed by MLX"
            )
    return ". Fetch config.json and weights of one and the same release"


def _twice(headers: Mapping[str, TensorInfo]) -> list[str]:
    by_name: dict[str, list[str]] = {}
    for name in headers:
        by_name.setdefault(module_name(name), []).append(name)
    lines = [" and ".join(sorted(names)) for names in by_name.values() if len(names) > 1]
    return [f"{len(lines)} there twice: {listing(sorted(lines))}"] if lines else []


def _compare(
    found: Mapping[str, TensorInfo], wanted: Mapping[str, tuple[int, ...]], extra: list[str]
) -> list[str]:
    problems = []
    if missing := sorted(set(wanted) - set(found)):
        lines = [f"{name} {list(wanted[name])}" for name in missing]
        problems.append(f"{len(missing)} missing: {listing(lines)}")
    if extra:
        lines = [f"{name} {list(found[name].shape)}" for name in extra]
        problems.append(f"{len(extra)} that nothing uses: {listing(lines)}")
    if lines := [
        f"{name}: expected {list(wanted[name])}, found {list(found[name].shape)}"
        for name in sorted(set(found) & set(wanted))
        if found[name].shape != wanted[name]
    ]:
        problems.append(f"{len(lines)} misshapen: {listing(lines)}")
    return problems


def _dtypes(
    found: Mapping[str, TensorInfo],
    wanted: Mapping[str, tuple[int, ...]],
    packings: Mapping[str, Packing],
) -> list[str]:
    """Packed weights are U32, scales of the microscaled modes U8, everything else floating."""
    wrong: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(set(found) & set(wanted)):
        path, _, part = name.rpartition(".")
        allowed: tuple[str, ...] = FLOATS
        if module_path(name) in packings:
            allowed = ("U32",)
        elif part == "scales" and path in packings and packings[path].mode != "affine":
            allowed = ("U8",)
        if found[name].dtype not in allowed:
            wrong.setdefault(allowed, []).append(f"{name} has dtype {found[name].dtype}")
    return [
        f"{len(lines)} with another dtype than {_either(allowed)}: {listing(lines)}"
        for allowed, lines in wrong.items()
    ]


def _either(names: tuple[str, ...]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
