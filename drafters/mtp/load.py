"""An MTP head's weights: experts stacked, norms brought to one convention, packs kept packed.

Every tensor is accounted for: a missing, left-over or misshapen one is an error that names it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ...core.checkpoint.config_repairs import read_ropes
from ...core.checkpoint.packings import FLOAT_MODES, PACKED_BITS
from ...core.checkpoint.param_types import require_types
from ...core.checkpoint.rope_modules import fit_ropes
from ...core.checkpoint.safetensors_headers import listing
from ...core.checkpoint.target_config import TargetConfig
from ...core.checkpoint.weight_source import load_arrays
from ...core.device import on_cpu
from ...core.errors import ConfigError, DflashError, TensorError, UnsupportedModel, described
from ...core.options import MtpHidden
from ..finite_weights import require_finite_weights
from .context import HeadCache
from .drafter import MtpDrafter, MtpModel
from .find import MtpSource
from .norms import NormForm, shift_norms

if TYPE_CHECKING:
    from ...core.target.target import Target

DTYPES = ("BF16", "F16", "F32", "U32", "U8")
PARTS = ("weight", "scales", "biases")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def load_head(
    source: MtpSource,
    target: Target,
    dtype: mx.Dtype,
    hidden: MtpHidden = "post",
    norms: NormForm | None = None,
) -> MtpDrafter:
    """Load a head and bind it to its target; dtype: its compute dtype; norms: how its norm weights
    are stored, None: as their values tell.

    Raises TensorError (names and shapes), UnsupportedModel for a head or target of another make.
    """
    args = target.backbone.text.args
    model, arrays = check_head(source, target.config, args)
    _check_precision(source, dtype)
    shifted = shift_norms(arrays, source.where, norms)
    arrays = {name: _cast(array, dtype) for name, array in shifted.items()}
    model.load_weights(list(arrays.items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    require_finite_weights(model, source.where)
    last_layer = target.config.num_hidden_layers - 1
    drafter = MtpDrafter(model, target, hidden, last_layer, dtype)
    drafter.place, drafter.files = source.where, source.files
    return drafter


def check_head(
    source: MtpSource, config: TargetConfig, args: Any
) -> tuple[MtpModel, dict[str, mx.array]]:
    """All that can be known of a head before its data is read: its kind, every name and shape.

    args: mlx-lm's arguments of the target. Returns and raises as match_head, and UnsupportedModel.
    """
    _check_kind(source)
    file = config.file if source.text_config is None else source.where / "config.json"
    with _built_of(file):
        model, arrays = match_head(source, _arguments(source, config, args))
        ropes, text = config.repairs.ropes, source.text_config
        if text is not None:
            ropes = read_ropes(config.family, file, text)
        fit_ropes(model, ropes, config.max_positions)
        row = mx.zeros((1, 2, args.hidden_size))
        model.layers[0](model.fuse(row, row), HeadCache(0))  # nothing is computed
    return model, arrays


@contextmanager
def _built_of(file: Path) -> Iterator[None]:
    """What mlx-lm's modules raise of a config.json as a ConfigError."""
    try:
        yield
    except DflashError:
        raise
    except Exception as exc:  # its code raises of every kind
        raise ConfigError(
            f"{file}: no MTP head can be built of it ({described(exc)}); fetch the file again, or "
            "correct the sizes in it"
        ) from exc


def match_head(source: MtpSource, args: Any) -> tuple[MtpModel, dict[str, mx.array]]:
    """Modules of the head's make, and its arrays under their names; no tensor data is read.

    args: mlx-lm's arguments of the target. Raises TensorError where they do not match.
    """
    arrays = _stack_experts(read_arrays(source))
    moe = "layers.0.mlp.gate.weight" in arrays
    if moe and not getattr(args, "num_experts", 0):
        raise TensorError(f"{source.where}: the MTP head has experts, config.json has none")
    model = MtpModel(args, moe)
    _quantize_like(model, arrays, source)
    _check_names(source, arrays, model)
    require_types(model, source.where, arrays)
    return model, arrays


def _arguments(source: MtpSource, config: TargetConfig, args: Any) -> Any:
    """mlx-lm's arguments of the target, or of the head's own folder, in the target's class."""
    needed = ("partial_rotary_factor", "full_attention_interval", "head_dim")
    if not all(hasattr(args, name) for name in needed):
        raise UnsupportedModel(
            f"{config.file}: MTP heads run with Qwen3-Next and Qwen3.5 targets, "
            f"not with model_type '{config.model_type}'"
        )
    if source.text_config is None:
        return args
    # A copy, because mlx-lm's arguments rewrite the nested rope_parameters.
    return type(args).from_dict(copy.deepcopy(dict(source.text_config)))


def _check_kind(source: MtpSource) -> None:
    """Refuse by name what was recognised and is not run."""
    names = source.tensors.keys()
    layers = {name.split(".")[1] for name in names if name.startswith("layers.")}
    if len(layers) > 1:
        raise UnsupportedModel(
            f"{source.where}: the MTP head has {len(layers)} layers; heads of one layer are run"
        )
    if own := [name for name in names if "embed_tokens" in name or "lm_head" in name]:
        raise UnsupportedModel(
            f"{source.where}: the MTP head has its own {listing(sorted(own))}; only heads that "
            "share the target's embedding and lm_head are run"
        )
    if wrong := sorted(
        f"{name} has dtype {found.info.dtype}"
        for name, found in source.tensors.items()
        if found.info.dtype not in DTYPES
    ):
        raise TensorError(
            f"{source.where}: tensors of the MTP head are neither floats nor MLX packs: "
            f"{listing(wrong)}; take the BF16 head of the original repository"
        )


def _check_precision(source: MtpSource, dtype: mx.Dtype) -> None:
    """Refuse unquantized experts that mlx cannot multiply: its gather_mm on the CPU is float32."""
    names = source.tensors.keys()
    packed = any(name.endswith(".scales") and ".mlp." in name for name in names)
    moe = any(name.startswith("layers.0.mlp.gate.") for name in names)
    if moe and not packed and dtype != mx.float32 and on_cpu():
        raise UnsupportedModel(
            f"{source.where}: an MTP head with experts needs float32 on the CPU, where mlx "
            "multiplies gathered experts in no other precision; use --dtype float32"
        )


def read_arrays(source: MtpSource) -> dict[str, mx.array]:
    """The arrays by bare name; mx.load is lazy, nothing is read yet."""
    loaded: dict[Path, dict[str, mx.array]] = {}
    for found in source.tensors.values():
        file = found.info.file
        if file not in loaded:
            loaded[file] = load_arrays(file)
    return {
        name: loaded[found.info.file][found.stored_name] for name, found in source.tensors.items()
    }


def _stack_experts(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Numbered and fused experts to mlx-lm's `switch_mlp`; other names as they are."""
    base = "layers.0.mlp."
    stacked = {name: array for name, array in arrays.items() if f"{base}experts." not in name}
    experts = {name: array for name, array in arrays.items() if name not in stacked}
    if not experts:
        return stacked
    fused = experts.pop(f"{base}experts.gate_up_proj", None)
    down = experts.pop(f"{base}experts.down_proj", None)
    if fused is not None and down is not None:
        width = arrays["fc.weight"].shape[0] if "fc.weight" in arrays else fused.shape[-1]
        if down.shape[1] != width and down.shape[2] == width:  # stored for x @ w
            fused, down = fused.swapaxes(1, 2), down.swapaxes(1, 2)
        gate, up = mx.split(fused, 2, axis=1)
        parts = zip(PROJECTIONS, (gate, up, down), strict=True)
        stacked |= {f"{base}switch_mlp.{projection}.weight": part for projection, part in parts}
    for projection in PROJECTIONS:
        for part in PARTS:
            rows: list[mx.array] = []
            name = f"{base}experts.{{}}.{projection}.{part}"
            while name.format(len(rows)) in experts:
                rows.append(experts.pop(name.format(len(rows))))
            if rows:
                stacked[f"{base}switch_mlp.{projection}.{part}"] = mx.stack(rows)
    return stacked | experts  # what is left is reported as a name that nothing uses


def _quantize_like(model: MtpModel, arrays: Mapping[str, mx.array], source: MtpSource) -> None:
    """Make the modules quantized where the file is, each at the width that its shapes tell.

    The head's width is its own: it is often another one than the target's.
    """

    def parameters(path: str, module: Any) -> bool | dict[str, Any]:
        scales = arrays.get(f"{path}.scales")
        weight = arrays.get(f"{path}.weight")
        if scales is None or weight is None or not hasattr(module, "to_quantized"):
            return False
        columns = module.weight.shape[-1]
        bits, odd = divmod(weight.shape[-1] * 32, columns)
        group, rest = divmod(columns, scales.shape[-1])
        mode = "affine" if f"{path}.biases" in arrays else FLOAT_MODES.get((bits, group))
        if odd or rest or mode is None or bits not in PACKED_BITS:
            raise TensorError(
                f"{source.where}: {path} is packed as {list(weight.shape)} with scales "
                f"{list(scales.shape)}, which is no MLX packing of {columns} columns"
            )
        return {"group_size": group, "bits": bits, "mode": mode}

    nn.quantize(model, class_predicate=parameters)


def _check_names(source: MtpSource, arrays: Mapping[str, mx.array], model: MtpModel) -> None:
    flat: Any = tree_flatten(model.parameters())
    expected = {name: tuple(array.shape) for name, array in flat}
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    groups = {
        "missing": [f"{name} {list(expected[name])}" for name in expected.keys() - found.keys()],
        "that nothing uses": [f"{name} {list(found[name])}" for name in found.keys() - expected],
        "misshapen": [
            f"{name}: expected {list(expected[name])}, found {list(found[name])}"
            for name in expected.keys() & found.keys()
            if expected[name] != found[name]
        ],
    }
    problems = [
        f"{len(lines)} {what}: {listing(sorted(lines))}" for what, lines in groups.items() if lines
    ]
    if problems:
        raise TensorError(
            f"{source.where}: the tensors are not those of this config.json's MTP head: "
            + "; ".join(problems)
        )


def _cast(array: mx.array, dtype: mx.Dtype) -> mx.array:
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
