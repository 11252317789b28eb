"""A target from a directory: what loads, what is refused and why, and what stays untouched."""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import base, cache, gated_delta, llama, qwen3, qwen3_5, qwen3_next
from mlx_lm.models.cache import ChunkedKVCache

from dflash_suite.core.checkpoint.families import FAMILIES
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.device import on_cpu
from dflash_suite.core.errors import (
    CheckpointError,
    ConfigError,
    DflashError,
    ModelNotFound,
    OptionError,
    TensorError,
    UnsupportedModel,
)
from dflash_suite.core.loading.load import (
    LoadedTarget,
    load_target,
    resolve_directory,
    resolve_dtype,
)
from dflash_suite.core.options import DTYPE_NAMES, GenerateOptions
from dflash_suite.core.target.backbones import PlainBackbone
from tests.kit.opening import open_target
from tests.kit.scripted import ScriptedDrafter, mixed
from tests.kit.tiny import (
    VOCAB,
    Kind,
    PieceDetokenizer,
    Precision,
    make_model,
    prompt,
    save_checkpoint,
    save_weights,
    stock_greedy,
)

PROMPT_IDS = prompt(12)


def open_here(directory: Path, dtype: str = "auto") -> LoadedTarget:
    return open_target(str(directory), dtype)


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change config.json in place."""
    file = directory / "config.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    change(raw)
    file.write_text(json.dumps(raw), encoding="utf-8")


# --- what loads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hybrid", "dense", "llama"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_a_checkpoint_decodes_as_the_model_it_was_saved_from(
    tmp_path: Path, kind: Kind, precision: Precision
) -> None:
    save_checkpoint(tmp_path, kind, precision)
    own_dtype = "bfloat16" if precision == "bfloat16" else "float32"
    loaded = open_here(tmp_path, own_dtype)
    plain = stock_greedy(make_model(kind, precision), PROMPT_IDS, 12)
    assert stock_greedy(loaded.target.backbone.model, PROMPT_IDS, 12) == plain
    assert loaded.target.config.num_hidden_layers == len(loaded.target.backbone.layers)
    assert loaded.target.is_hybrid == (kind == "hybrid")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", mx.float32), ("bfloat16", mx.bfloat16), ("float16", mx.float16)],
)
def test_dtype_option(tmp_path: Path, name: str, dtype: mx.Dtype) -> None:
    save_checkpoint(tmp_path, "hybrid", "bfloat16")
    target = open_here(tmp_path, name).target
    assert target.compute_dtype == dtype
    parameters: dict[str, mx.array] = dict(tree_flatten(target.backbone.model.parameters()))
    dtypes = {name: array.dtype for name, array in parameters.items()}
    kept = {name for name in dtypes if name.endswith("A_log")}
    assert len(kept) == 3 and {dtypes[name] for name in kept} == {mx.float32}
    assert {dtypes[name] for name in set(dtypes) - kept} == {dtype}
    cache = target.make_cache()
    target.forward_with_taps(mx.array([PROMPT_IDS]), cache)
    assert cache[0][1].dtype == mx.float32, "the recurrent state stays float32"


def test_dtype_of_a_quantized_checkpoint(tmp_path: Path) -> None:
    """Codes stay codes; scales and biases follow."""
    save_checkpoint(tmp_path, "dense", "4bit")
    target = open_here(tmp_path, "bfloat16").target
    arrays: dict[str, mx.array] = dict(tree_flatten(target.backbone.model.parameters()))
    assert {array.dtype for array in arrays.values()} == {mx.bfloat16, mx.uint32}
    assert target.compute_dtype == mx.bfloat16


def test_auto_is_float32_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, "dense", "bfloat16")
    for cpu, dtype in ((True, mx.float32), (False, mx.bfloat16)):
        monkeypatch.setattr("dflash_suite.core.loading.load.on_cpu", lambda cpu=cpu: cpu)
        assert open_here(tmp_path).target.compute_dtype == dtype
    assert on_cpu() == (mx.default_device() == mx.cpu)


def test_dtype_names() -> None:
    assert DTYPE_NAMES == ("auto", "float32", "bfloat16", "float16")
    assert resolve_dtype("bfloat16") == mx.bfloat16
    with pytest.raises(OptionError, match=r"dtype 'f32' is unknown \(expected auto\|float32\|"):
        resolve_dtype("f32")


def test_files_can_go_after_the_load(tmp_path: Path) -> None:
    """Every array was read; nothing is fetched from the file later."""
    save_checkpoint(tmp_path)
    target = open_here(tmp_path).target
    (tmp_path / "model.safetensors").unlink()
    plain = stock_greedy(make_model(), PROMPT_IDS, 6)
    run = Generation(target, PROMPT_IDS, PieceDetokenizer(), options=GenerateOptions(max_tokens=6))
    list(run)
    assert run.emitter.token_ids == plain


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_after_the_load_is_the_weights(tmp_path: Path, dtype: str) -> None:
    """One copy, also where the load casts; the forward check's caches are gone."""
    save_checkpoint(tmp_path, "hybrid", "bfloat16", vocab_size=8192)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    loaded = open_here(tmp_path, dtype)
    gc.collect()
    mx.clear_cache()
    held = mx.get_active_memory() - before
    parameters: dict[str, mx.array] = dict(tree_flatten(loaded.target.backbone.model.parameters()))
    weights = sum(array.nbytes for array in parameters.values())
    assert weights > 2_000_000
    assert weights <= held < 1.05 * weights


def test_several_weight_files(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "dense")
    arrays = mx.load(str(tmp_path / "model.safetensors"))
    assert isinstance(arrays, dict)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(arrays)
    for number, part in enumerate((names[:7], names[7:]), start=1):
        file = tmp_path / f"model-0000{number}-of-00002.safetensors"
        mx.save_safetensors(str(file), {name: arrays[name] for name in part})
    plain = stock_greedy(make_model("dense"), PROMPT_IDS, 4)
    assert stock_greedy(open_here(tmp_path).target.backbone.model, PROMPT_IDS, 4) == plain


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    tokenizer = open_here(save_checkpoint(tmp_path)).tokenizer
    assert tokenizer.decode(tokenizer.encode("héllo")) == "héllo"


# --- where an answer ends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top", "text", "generation", "expected"),
    [
        (5, None, None, {0, 5}),
        ([5, 6], None, None, {0, 5, 6}),
        (None, 7, None, {0, 7}),
        (None, None, [8, 9], {0, 8, 9}),
        ([5], 7, [8], {0, 5, 7, 8}),
        (None, None, None, {0}),
    ],
)
def test_eos_is_the_union_of_all_places(
    tmp_path: Path, top: Any, text: Any, generation: Any, expected: set[int]
) -> None:
    """config.json at both levels, generation_config.json, and the tokenizer."""
    save_checkpoint(tmp_path)

    def change(raw: dict[str, Any]) -> None:
        raw["eos_token_id"] = top
        raw["text_config"]["eos_token_id"] = text

    edit(tmp_path, change)
    if generation is not None:
        content = json.dumps({"eos_token_id": generation})
        (tmp_path / "generation_config.json").write_text(content, encoding="utf-8")
    loaded = open_here(tmp_path)
    assert loaded.target.config.eos_ids == expected
    assert loaded.tokenizer.eos_token_ids == expected


def test_the_tokenizers_own_eos_ends_an_answer(tmp_path: Path) -> None:
    """Named nowhere else: the loop still stops there, as mlx-lm's stream_generate does."""
    save_checkpoint(tmp_path)
    plain = stock_greedy(make_model(), PROMPT_IDS, 12)
    eos = plain[5]
    assert eos not in plain[:5]
    edit(tmp_path, lambda raw: raw.pop("eos_token_id"))
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["<eos>"], vocab["<other>"] = eos, 0
    vocab.update({name: 511 - eos for name, i in vocab.items() if i == eos and name != "<eos>"})
    tokenizer["added_tokens"][0]["id"] = eos
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    loaded = open_here(tmp_path)
    assert loaded.target.config.eos_ids == {eos}
    run = Generation(
        loaded.target, PROMPT_IDS, PieceDetokenizer(), options=GenerateOptions(max_tokens=12)
    )
    list(run)
    assert run.emitter.token_ids == plain[:6] and run.emitter.reason == "stop"


# --- what is refused ----------------------------------------------------------------------------


def refused(directory: Path, kind: type[DflashError], *words: str) -> None:
    """Loading raises `kind`; the message names the place and every word."""
    with pytest.raises(kind) as caught:
        open_here(directory)
    message = str(caught.value)
    for word in (str(directory), *words):
        assert word in message, message


def test_an_unsupported_model_type_lists_the_supported_ones(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "dense")
    edit(tmp_path, lambda raw: raw.update(model_type="gpt2"))
    refused(
        tmp_path,
        UnsupportedModel,
        "model_type 'gpt2' is not supported as a target",
        f"supported: {', '.join(sorted(FAMILIES))}",
    )


def test_an_unknown_wrapper_is_unsupported_before_any_weights(tmp_path: Path) -> None:
    """Nothing big is opened, there is nothing to open here."""
    save_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    edit(tmp_path, lambda raw: raw.update(model_type="qwen9_vl"))
    refused(tmp_path, UnsupportedModel, "model_type 'qwen9_vl'")


def test_a_target_whose_cache_no_rollback_knows_is_refused(tmp_path: Path) -> None:
    """A rollback would fail in the middle of an answer."""

    class Chunked(PlainBackbone):
        def make_cache(self) -> list[Any]:
            make: Any = ChunkedKVCache
            return [*super().make_cache()[:1], make(8)]

    backbone = Chunked(make_model("dense"))
    with pytest.raises(UnsupportedModel, match="layer 1 uses a ChunkedKVCache.*cannot be rolled"):
        backbone.require_rollback(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    refused(tmp_path, ModelNotFound, "config.json does not exist")


def test_no_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    refused(tmp_path, ModelNotFound, "has no weights")


@pytest.mark.parametrize("content", ["", "{", "nonsense", "[" * 100_000, '{"a": ' + "9" * 5000])
def test_a_config_that_is_not_json(tmp_path: Path, content: str) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    refused(tmp_path, ConfigError, "config.json is not JSON")


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"'])
def test_a_config_that_is_no_object(tmp_path: Path, content: str) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    refused(tmp_path, ConfigError, "expected a JSON object")


def test_a_config_in_another_encoding(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes('{"model_type": "é"}'.encode("latin-1"))
    refused(tmp_path, ConfigError, "config.json cannot be read")


def test_a_generation_config_that_is_not_json(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text("{", encoding="utf-8")
    refused(tmp_path, ConfigError, "generation_config.json is not JSON")


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers", "hidden_size"])
@pytest.mark.parametrize("value", [None, "64", 0, -1, 1.5, True, [64]])
def test_a_config_key_that_is_missing_or_wrong(tmp_path: Path, key: str, value: Any) -> None:
    save_checkpoint(tmp_path)
    edit(tmp_path, lambda raw: raw["text_config"].update({key: value}))
    refused(tmp_path, ConfigError, key)


@pytest.mark.parametrize("value", [None, 3, ["qwen3"]])
def test_a_model_type_that_is_no_name(tmp_path: Path, value: Any) -> None:
    save_checkpoint(tmp_path)
    edit(tmp_path, lambda raw: raw.update(model_type=value))
    refused(tmp_path, ConfigError, "model_type")


def test_a_text_config_that_is_no_object(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    edit(tmp_path, lambda raw: raw.update(text_config=[1]))
    refused(tmp_path, ConfigError, "'text_config' is [1], expected an object")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def header_only(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: 8 + int.from_bytes(content[:8], "little")])


def garbage(file: Path) -> None:
    file.write_bytes(b"\xff" * 4096)


@pytest.mark.parametrize("damage", [cut, header_only, garbage])
def test_broken_weights_are_refused_by_their_header(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    save_checkpoint(tmp_path)
    damage(tmp_path / "model.safetensors")
    refused(tmp_path, TensorError, "model.safetensors")


def test_an_empty_weights_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(tmp_path, TensorError, "is 0 bytes, too small")


def test_weights_of_another_model(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "dense")
    save_weights(tmp_path / "model.safetensors", make_model("dense", num_hidden_layers=3))
    refused(tmp_path, CheckpointError, "could not be loaded by mlx-lm", "layers.3")


def test_weights_of_another_shape(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "dense")
    edit(tmp_path, lambda raw: raw.update(intermediate_size=96))
    refused(tmp_path, CheckpointError, "could not be loaded by mlx-lm", "shape")


@pytest.mark.parametrize("kind", ["hybrid", "dense", "llama"])
def test_no_tokenizer(tmp_path: Path, kind: Kind) -> None:
    """transformers would make an empty one of these model types, and every text would be lost."""
    save_checkpoint(tmp_path, kind)
    (tmp_path / "tokenizer.json").unlink()
    refused(tmp_path, ModelNotFound, "has no tokenizer: none of tokenizer.json, tokenizer.model")


@pytest.mark.parametrize("content", ["{", '{"model": {"type": "BPE"}}'])
def test_a_broken_tokenizer(tmp_path: Path, content: str) -> None:
    """The tokenizers library raises a bare Exception."""
    save_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    refused(tmp_path, CheckpointError, "could not be loaded")


BAD_SETTINGS: list[tuple[str, Any]] = [
    ("num_attention_heads", 0),
    ("num_attention_heads", 3),
    ("full_attention_interval", 0),
    ("linear_num_key_heads", 3),
    ("linear_conv_kernel_dim", 0),
    ("intermediate_size", 0),
    ("rms_norm_eps", "small"),
    ("rope_parameters", "none"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": []}),
    ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 3}),
    ("tie_word_embeddings", True),
]


@pytest.mark.parametrize(("key", "value"), BAD_SETTINGS)
def test_settings_that_do_not_fit_are_never_a_traceback(
    tmp_path: Path, key: str, value: Any
) -> None:
    """Whatever mlx-lm and transformers raise of them, at load or in the first forward."""
    save_checkpoint(tmp_path)
    edit(tmp_path, lambda raw: raw["text_config"].update({key: value}))
    refused(tmp_path, CheckpointError)


@pytest.mark.parametrize("value", ["no", 3, [1]])
def test_outer_settings_of_the_wrong_type(tmp_path: Path, value: Any) -> None:
    """transformers' own strict config check is no ValueError."""
    save_checkpoint(tmp_path)
    edit(tmp_path, lambda raw: raw.update(tie_word_embeddings=value))
    refused(tmp_path, CheckpointError)


# --- directories and hub ids --------------------------------------------------------------------


def test_resolve_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_directory(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert resolve_directory(f"~/{tmp_path.name}") == tmp_path


@pytest.mark.parametrize("reference", ["nowhere", "./a/b", "/no/such", "~/none", "a/b/c"])
def test_neither_a_directory_nor_a_hub_id(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="neither a directory here nor a hub id"):
        resolve_directory(reference)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelNotFound, match="is a file; give the directory that holds config"):
        resolve_directory(str(file))


def test_a_hub_id_is_fetched_by_the_hubs_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def fetched(repository: str, allow_patterns: list[str], **_: object) -> str:
        asked.append((repository, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    assert resolve_directory("owner/name") == tmp_path
    assert asked[0][0] == "owner/name" and "*.safetensors" in asked[0][1]
    assert not any(pattern.endswith(".py") for pattern in asked[0][1])


def test_a_hub_id_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(repository: str, **_: object) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"hub id owner/name could not be fetched .*network"):
        resolve_directory("owner/name")


# --- mlx-lm stays as it was ---------------------------------------------------------------------

MODULES = (base, cache, gated_delta, llama, qwen3, qwen3_5, qwen3_next)


def library_attributes() -> Mapping[str, int]:
    """Identity of every attribute of mlx-lm's modules and of the classes in them."""
    seen: dict[str, int] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            seen[f"{module.__name__}.{name}"] = id(value)
            if inspect.isclass(value):
                for attribute, held in vars(value).items():
                    seen[f"{module.__name__}.{name}.{attribute}"] = id(held)
    return seen


def model_attributes(model: Any) -> Mapping[str, Any]:
    """Class, instance attributes and parameters of every module of a loaded model."""
    seen: dict[str, Any] = {}
    for path, module in model.named_modules():
        seen[f"{path} class"] = id(type(module))
        for name, value in vars(module).items():
            seen[f"{path}.{name}"] = id(value) if callable(value) else repr(value)
        for name, value in module.items():
            seen[f"{path}[{name}]"] = id(value)
    return seen


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_nothing_of_mlx_lm_is_replaced(tmp_path: Path, kind: Kind) -> None:
    """No class, module or loaded model is patched, by loading or by decoding with taps and tape."""
    save_checkpoint(tmp_path, kind)
    library = library_attributes()
    assert len(library) > 200
    loaded = open_here(tmp_path)
    model = loaded.target.backbone.model
    assert library_attributes() == library
    before = model_attributes(model)
    assert len(before) > 100
    plain = stock_greedy(model, PROMPT_IDS, 40)
    drafter = ScriptedDrafter(mixed(VOCAB, 5), plain, len(PROMPT_IDS), tap_ids=(1, 3))
    run = Generation(
        loaded.target,
        PROMPT_IDS,
        loaded.tokenizer.detokenizer,
        drafter=drafter,
        options=GenerateOptions(max_tokens=20, gate=False),
    )
    list(run)
    assert run.stats.rounds > 3 and run.stats.accepted > 3
    assert library_attributes() == library
    assert model_attributes(model) == before
    fresh = make_model(kind)
    stock = {path: type(module) for path, module in fresh.named_modules()}
    assert {path: type(module) for path, module in model.named_modules()} == stock


def test_reading_a_config_opens_no_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, eos_ids=(3, 4))
    (tmp_path / "model.safetensors").unlink()
    config = read_target_config(tmp_path)
    assert (config.model_type, config.vocab_size, config.num_hidden_layers) == ("qwen3_5", VOCAB, 4)
    assert config.hidden_size == 64 and config.eos_ids == {3, 4}
    assert config.file == tmp_path / "config.json"
    with pytest.raises(ModelNotFound):
        load_target(config)
