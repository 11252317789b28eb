"""A target's weights and tokenizer, through mlx-lm's own loader."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import load_model

from ..checkpoint.hub import resolve_directory as resolve_directory
from ..checkpoint.listing import plain_name
from ..checkpoint.mlx_models import model_module
from ..checkpoint.param_types import require_types
from ..checkpoint.rope_modules import fit_ropes
from ..checkpoint.safetensors_headers import TARGET_PATTERN, read_headers
from ..checkpoint.target_config import TargetConfig
from ..checkpoint.weight_index import index_note, weight_files
from ..device import dtype_text, on_cpu
from ..errors import CheckpointError, DflashError, OptionError, UnsupportedModel, described
from ..kernel_folder import require_kernel_folder
from ..options import DEFAULT_KERNELS, parse_dtype, parse_kernels
from ..target.families import backbone_class
from ..target.forward_check import check_forward
from ..target.target import Target
from ..wired_limit import while_raised, wired_limit
from .adapter import apply_adapter, find_adapter
from .kernels import put_on_kernels
from .tokenizer import open_tokenizer


@dataclass(frozen=True)
class LoadedTarget:
    """A target that passed its forward check, and its tokenizer (mlx-lm's TokenizerWrapper).

    notes: what was put right of its files, a line each, for the user.
    """

    target: Target
    tokenizer: Any
    notes: tuple[str, ...] = ()


def resolve_dtype(name: str) -> mx.Dtype | None:
    """The compute dtype of `--dtype`; None leaves the checkpoint's own.

    auto is float32 on the CPU, where it is the faster one, and the checkpoint's own elsewhere.
    """
    if parse_dtype(name) == "auto":
        return mx.float32 if on_cpu() else None
    dtype: mx.Dtype = getattr(mx, name)
    return dtype


@while_raised
def load_target(
    config: TargetConfig,
    dtype_name: str = "auto",
    kernels: str = DEFAULT_KERNELS,
    adapter_path: str | None = None,
) -> LoadedTarget:
    """Load weights and tokenizer, cast to the compute dtype, and check the forward.

    kernels: `stock`, MLX's and mlx-lm's own; `fused`, the suite's for CUDA; `auto`, those where
    they fit. adapter_path: a folder with a LoRA adapter, under which kernels are MLX's. Raises
    UnsupportedModel, TensorError or CheckpointError, each naming the file; OptionError for fused
    kernels where they cannot run; ForwardMismatch where the suite's forward is not mlx-lm's own to
    the last bit, or the fused one not the same up to rounding.
    """
    dtype, wanted = resolve_dtype(dtype_name), parse_kernels(kernels)
    adapter = find_adapter(adapter_path) if adapter_path is not None else None
    if adapter is not None and wanted == "fused":
        raise OptionError("the suite's CUDA kernels know no adapters: leave out --kernels fused")
    opened = open_tokenizer(config)
    read_headers(weight_files(config.path, TARGET_PATTERN))
    model = load_lazily(config)
    require_types(model, config.path)
    if adapter is not None:
        apply_adapter(model, adapter)
    try:
        if dtype is not None:
            _cast(model, dtype)
        check_experts(model, config)
        mx.eval(model.parameters())
    except (DflashError, MemoryError):
        raise
    except Exception as exc:  # a bad file makes mlx-lm and transformers raise of every kind
        raise _not_loaded(config, exc) from exc
    target = put_behind_forward(model, replace(config, eos_ids=opened.eos_ids(config)))
    check_forward(target)
    arrays: Any = tree_flatten(model.parameters())
    paged = wired_limit().note(sum(array.nbytes for _, array in arrays))
    applied = None if adapter is None else f"the adapter {adapter} is applied"
    said = (index_note(config.path), paged, applied)
    wanted = wanted if adapter is None else "stock"
    notes = (*config.repairs.notes, *opened.notes, *(one for one in said if one))
    return LoadedTarget(put_on_kernels(target, wanted), opened.wrapper, notes)


def put_behind_forward(model: Any, config: TargetConfig) -> Target:
    """mlx-lm's model behind the suite's forward, not compared with mlx-lm's own yet.

    Raises UnsupportedModel for a cache that cannot be rolled back, CheckpointError where mlx-lm
    cannot make one.
    """
    if on_cpu():
        require_kernel_folder()
    make_backbone = backbone_class(config.model_type, config.file)
    try:
        backbone = make_backbone(model)
        backbone.require_rollback(config.file)
    except (DflashError, MemoryError):
        raise
    except Exception as exc:  # as above
        raise _not_loaded(config, exc) from exc
    return Target(backbone, config)


def load_lazily(config: TargetConfig) -> Any:
    """mlx-lm's model, with the repairs of its config.json; no weight is read yet.

    Raises CheckpointError for what mlx-lm refuses.
    """
    arguments: dict[str, Any] = {"model_config": copy.deepcopy(config.repairs.overrides)}
    if config.family.unread:
        arguments["get_model_classes"] = lambda **_: _classes_without_unread(config)
    try:
        with plain_name(config.path) as directory:
            model, _ = load_model(directory, lazy=True, **arguments)
        fit_ropes(model, config.repairs.ropes, config.max_positions)
    except (CheckpointError, MemoryError):
        raise
    except Exception as exc:  # as above
        raise _not_loaded(config, exc) from exc
    return model


def _not_loaded(config: TargetConfig, exc: Exception) -> CheckpointError:
    return CheckpointError(f"{config.path} could not be loaded by mlx-lm: {described(exc)}")


def _classes_without_unread(config: TargetConfig) -> tuple[Any, Any]:
    """mlx-lm's classes of a family, of which the model never sees the tensors that the family
    does not read: its strict load would fail over them."""
    module: Any = model_module(config.model_type)
    stock: Any = module.Model

    class WithoutUnread(stock):
        """mlx-lm's model, behind a filter."""

        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            """As mlx-lm's, over what the family reads."""
            kept = {name: array for name, array in weights.items() if config.family.reads(name)}
            sanitized: dict[str, mx.array] = super().sanitize(kept)
            return sanitized

    return WithoutUnread, module.ModelArgs


def check_experts(model: Any, config: TargetConfig) -> None:
    """Refuse unquantized experts that MLX cannot multiply: its gather_mm on the CPU is float32."""
    if not on_cpu():
        return
    for name, module in model.named_modules():
        if isinstance(module, SwitchLinear) and module.weight.dtype != mx.float32:
            dtype = dtype_text(module.weight.dtype)
            raise UnsupportedModel(
                f"{config.path} is a mixture of experts in {dtype} ({name}), and MLX multiplies "
                "unquantized experts on the CPU in float32 only (gather_mm): use --dtype float32, "
                "or a quantized copy"
            )


def _cast(model: Any, dtype: mx.Dtype) -> None:
    """Cast floating parameters, as mlx-lm casts them: A_log and the like keep their dtype."""
    keeps_cast = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, array: Any) -> Any:
        if mx.issubdtype(array.dtype, mx.floating) and keeps_cast(path):
            return array.astype(dtype)
        return array

    model.update(tree_map_with_path(cast, model.parameters()))
