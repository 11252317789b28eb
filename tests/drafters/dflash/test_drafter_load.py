"""Loading a drafter: every tensor accounted for, broken files refused, nothing read later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.errors import ConfigError, TensorError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.stats import Chunk
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.dflash.load import load_drafter
from tests.kit.tiny import PieceDetokenizer, as_ids, make_target, prompt, stock_greedy
from tests.kit.tiny_drafter import (
    make_drafter,
    observe_taps,
    random_ends,
    random_tensors,
    raw_drafter,
    save_drafter,
    tap_rows,
    tensor_shapes,
)

CODEBOOKS = (
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
)
Tensors = dict[str, mx.array]


def load(directory: Path, dtype: mx.Dtype = mx.float32) -> DFlashDrafter:
    return load_drafter(read_drafter_config(directory), random_ends(), dtype)


def refused(directory: Path) -> str:
    with pytest.raises(TensorError) as caught:
        load(directory)
    assert str(directory) in str(caught.value)
    return str(caught.value)


def parameters(drafter: DFlashDrafter) -> Tensors:
    flat: Any = tree_flatten(drafter.model.parameters())
    return dict(flat)


def drafts(drafter: DFlashDrafter, seed: int = 3) -> list[int]:
    """Ids after nine tap rows; the drafter is left where it stands."""
    drafter.reset(0)
    observe_taps(drafter, tap_rows(9, seed))
    return as_ids(drafter.draft(mx.array([5]), 4))


def assert_equal_tensors(drafter: DFlashDrafter, tensors: Tensors) -> None:
    loaded = parameters(drafter)
    assert set(loaded) == set(tensors)
    for name, array in tensors.items():
        assert mx.array_equal(loaded[name], array.astype(loaded[name].dtype)), name


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("stored", [mx.bfloat16, mx.float16, mx.float32])
def test_every_tensor_arrives_with_its_value(
    tmp_path: Path, kind: DrafterKind, stored: mx.Dtype
) -> None:
    """Both codebooks too, which stand in the file as bare arrays."""
    raw = raw_drafter(kind)
    tensors = {name: array.astype(stored) for name, array in random_tensors(raw).items()}
    drafter = load(save_drafter(tmp_path, raw, tensors))
    assert_equal_tensors(drafter, tensors)
    assert (kind == "dflash2") == all(name in tensors for name in CODEBOOKS)
    assert all(array.dtype == mx.float32 for array in parameters(drafter).values())


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_weights_are_cast_to_the_compute_dtype(tmp_path: Path, dtype: mx.Dtype) -> None:
    tensors = random_tensors(raw_drafter())
    drafter = load(save_drafter(tmp_path, tensors=tensors), dtype)
    assert all(array.dtype == dtype for array in parameters(drafter).values())
    assert_equal_tensors(drafter, tensors)


def test_the_number_of_tensors_is_that_of_the_published_layout(tmp_path: Path) -> None:
    """As published: 3 + 11 a layer for v1, 4 more with biases, 6 + 15 a layer for v2."""
    assert len(parameters(make_drafter(tmp_path / "1", "dflash"))) == 3 + 11 * 2
    assert (
        len(parameters(make_drafter(tmp_path / "b", "dflash", attention_bias=True))) == 3 + 15 * 2
    )
    assert len(parameters(make_drafter(tmp_path / "2", "dflash2"))) == 6 + 15 * 2


@pytest.mark.parametrize("name", sorted(tensor_shapes(raw_drafter(attention_bias=True))))
def test_any_missing_tensor_is_named_with_its_shape(tmp_path: Path, name: str) -> None:
    raw = raw_drafter(attention_bias=True)
    tensors = random_tensors(raw)
    shape = list(tensors.pop(name).shape)
    assert f"1 missing: {name} {shape}" in refused(save_drafter(tmp_path, raw, tensors))


def test_a_tensor_that_nothing_uses_is_named(tmp_path: Path) -> None:
    """A per-head gate changes the maths; dropping it would only cost acceptance."""
    tensors = random_tensors(raw_drafter())
    tensors["layers.0.self_attn.g_proj.weight"] = mx.zeros((4, 64))
    message = refused(save_drafter(tmp_path, tensors=tensors))
    assert "1 that nothing uses: layers.0.self_attn.g_proj.weight [4, 64]" in message


def test_biases_need_the_config_to_say_so(tmp_path: Path) -> None:
    with_biases = random_tensors(raw_drafter("dflash", attention_bias=True))
    message = refused(save_drafter(tmp_path, raw_drafter("dflash"), with_biases))
    assert "8 that nothing uses" in message and "layers.1.self_attn.v_proj.bias [32]" in message


def test_a_v2_file_is_no_v1(tmp_path: Path) -> None:
    """A v2 file has every v1 tensor: a tolerant loader would open it and draft worse."""
    tensors = random_tensors(raw_drafter("dflash2"))
    message = refused(save_drafter(tmp_path, raw_drafter("dflash"), tensors))
    assert "11 that nothing uses" in message and CODEBOOKS[0] in message


@pytest.mark.parametrize("name", [*CODEBOOKS, "fc.weight", "norm.weight"])
def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path, name: str) -> None:
    tensors = random_tensors(raw_drafter())
    right = list(tensors[name].shape)
    tensors[name] = mx.zeros((right[0] + 1, *right[1:]))
    message = refused(save_drafter(tmp_path, tensors=tensors))
    assert f"1 misshapen: {name}: expected {right}, found {[right[0] + 1, *right[1:]]}" in message


@pytest.mark.parametrize(("dtype", "word"), [(mx.int32, "I32"), (mx.uint8, "U8")])
def test_a_tensor_of_another_dtype_is_named(tmp_path: Path, dtype: mx.Dtype, word: str) -> None:
    tensors = random_tensors(raw_drafter())
    tensors[CODEBOOKS[1]] = tensors[CODEBOOKS[1]].astype(dtype)
    message = refused(save_drafter(tmp_path, tensors=tensors))
    assert f"1 with another dtype than BF16, F16 or F32: {CODEBOOKS[1]} has dtype {word}" in message


def test_at_most_ten_names_of_a_kind_are_listed(tmp_path: Path) -> None:
    tensors = random_tensors(raw_drafter())
    gone = sorted(tensors)[:14]
    for name in gone:
        del tensors[name]
    for index in range(12):
        tensors[f"extra.{index:02}"] = mx.zeros((1,))
    tensors["norm.weight"] = mx.zeros((3,))
    message = refused(save_drafter(tmp_path, tensors=tensors))
    assert "14 missing" in message and "and 4 more" in message
    assert [name in message for name in gone] == [True] * 10 + [False] * 4
    assert "12 that nothing uses" in message and "and 2 more" in message
    assert "extra.09" in message and "extra.10" not in message
    assert "1 misshapen: norm.weight" in message


@pytest.mark.parametrize("names", [["model.safetensors"], ["dflash_draft_model-00001.safetensors"]])
def test_a_model_prefix_and_any_file_name_are_read(tmp_path: Path, names: list[str]) -> None:
    tensors = random_tensors(raw_drafter())
    prefixed = {f"model.{name}": array for name, array in tensors.items()}
    assert_equal_tensors(load(save_drafter(tmp_path, tensors=prefixed, file=names[0])), tensors)


def test_tensors_may_be_spread_over_files(tmp_path: Path) -> None:
    tensors = random_tensors(raw_drafter())
    names = sorted(tensors)
    save_drafter(
        tmp_path, tensors={name: tensors[name] for name in names[:9]}, file="b.safetensors"
    )
    save_drafter(
        tmp_path, tensors={name: tensors[name] for name in names[9:]}, file="a.safetensors"
    )
    assert_equal_tensors(load(tmp_path), tensors)


def test_a_tensor_in_two_places_is_refused(tmp_path: Path) -> None:
    """Which of two copies counts must not depend on the order of files or names."""
    tensors = random_tensors(raw_drafter())
    save_drafter(tmp_path, tensors=tensors)
    save_drafter(tmp_path, tensors={"norm.weight": tensors["norm.weight"]}, file="x.safetensors")
    assert "norm.weight is in both" in refused(tmp_path)
    (tmp_path / "x.safetensors").unlink()
    save_drafter(tmp_path, tensors=tensors | {"model.norm.weight": mx.ones((64,))})
    message = refused(tmp_path)
    assert "norm.weight" in message and "model.norm.weight" in message


def split(file: Path) -> tuple[dict[str, Any], bytes]:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(file: Path, header: object, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def with_entry(file: Path, **changes: object) -> None:
    """Change the header entry of norm.weight."""
    header, data = split(file)
    header["norm.weight"] |= changes
    join(file, header, data)


def overlapping(file: Path) -> None:
    """norm.weight takes the first bytes of fc.weight; all entries keep their own length."""
    header, data = split(file)
    start = header["fc.weight"]["data_offsets"][0]
    header["norm.weight"]["data_offsets"] = [start, start + 4 * 64]
    join(file, header, data)


def moved_past_the_end(file: Path) -> None:
    header, data = split(file)
    header["norm.weight"]["data_offsets"] = [len(data), len(data) + 4 * 64]
    join(file, header, data)


def with_nan(file: Path) -> None:
    """Python reads NaN as JSON, mlx does not."""
    header, data = split(file)
    join(file, header | {"__metadata__": {"loss": float("nan")}}, data)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda file: file.write_bytes(b""), "too small"),
    "eight bytes": (lambda file: file.write_bytes(b"\x02" + b"\x00" * 7), "too small"),
    "no data": (lambda file: join(file, split(file)[0], b""), "the file is truncated"),
    "cut data": (lambda file: join(file, split(file)[0], split(file)[1][:-1]), "is truncated"),
    "cut header": (lambda file: file.write_bytes(file.read_bytes()[:100]), "truncated or no"),
    "a web page": (lambda file: file.write_bytes(b"<!DOCTYPE html>" * 9), "truncated or no"),
    "no JSON": (lambda file: join(file, b"{" * 60, split(file)[1]), "not JSON"),
    "no UTF-8": (lambda file: join(file, b"\xff" * 60, split(file)[1]), "not JSON"),
    "a list": (lambda file: join(file, [1, 2], split(file)[1]), "not a JSON object"),
    "bad metadata": (lambda file: join(file, {"__metadata__": 5}, b""), "__metadata__"),
    "a number JSON has not": (with_nan, "could not be read"),
    "entry is a list": (lambda file: join(file, {"norm.weight": []}, b""), "norm.weight"),
    "no shape": (lambda file: with_entry(file, shape=None), "norm.weight"),
    "negative shape": (lambda file: with_entry(file, shape=[-64]), "norm.weight"),
    "shape is not a list": (lambda file: with_entry(file, shape="64"), "norm.weight"),
    "half a row": (lambda file: with_entry(file, shape=[64.5]), "norm.weight"),
    "unknown dtype": (lambda file: with_entry(file, dtype="F12"), "unknown dtype F12"),
    "dtype is a list": (lambda file: with_entry(file, dtype=["F32"]), "norm.weight"),
    "one offset": (lambda file: with_entry(file, data_offsets=[0]), "norm.weight"),
    "wrong length": (lambda file: with_entry(file, data_offsets=[0, 9]), "takes bytes 0..9"),
    "reversed": (lambda file: with_entry(file, data_offsets=[256, 0]), "takes bytes 256..0"),
    "before the data": (lambda file: with_entry(file, data_offsets=[-256, 0]), "takes bytes -256"),
    "overlap": (overlapping, "overlap at byte"),
    "past the end": (moved_past_the_end, "the file is truncated"),
}


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_a_broken_file_is_named_and_refused(tmp_path: Path, case: str) -> None:
    damage, words = BROKEN[case]
    file = save_drafter(tmp_path) / "model.safetensors"
    damage(file)
    message = refused(tmp_path)
    assert str(file) in message and words in message


def test_random_damage_to_the_header_never_passes_as_another_error(tmp_path: Path) -> None:
    """Any exception but TensorError would be a traceback for the user."""
    file = save_drafter(tmp_path) / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    key, refusals = mx.random.key(11), 0
    for place in as_ids(mx.random.randint(0, 8 + length, (150,), key=key)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            load(tmp_path)
        except TensorError as error:
            assert str(tmp_path) in str(error)
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_nothing_is_read_from_the_file_after_the_load(tmp_path: Path, kind: DrafterKind) -> None:
    """Other bytes in the same place, and then no file at all, change no draft."""
    expected = drafts(make_drafter(tmp_path / "kept", kind))
    drafter = make_drafter(tmp_path / "lost", kind)
    file = tmp_path / "lost" / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:  # in place, so that a lazy reader would see it
        stream.write(b"\x3f" * size)
    assert drafts(drafter) == expected
    file.unlink()
    assert drafts(drafter) == expected
    assert drafts(drafter, seed=4) == drafts(load(tmp_path / "kept"), seed=4) != expected


def test_a_generation_goes_on_without_the_file(tmp_path: Path) -> None:
    """In the middle of an answer."""
    target, ids = make_target("dense"), prompt(10)
    drafter = make_drafter(tmp_path, ends=target)
    options = GenerateOptions(max_tokens=30, block_size=6, gate=False)
    run = Generation(target, ids, PieceDetokenizer(), drafter=drafter, options=options)
    tokens: list[int] = []
    for event in run:
        if isinstance(event, Chunk):
            (tmp_path / "model.safetensors").unlink(missing_ok=True)
            tokens += event.token_ids
    assert run.stats.rounds > 5
    assert tokens == stock_greedy(target.backbone.model, ids, 30)


@pytest.mark.parametrize(
    "parameters_of_rope",
    [
        {"rope_type": "spiral", "rope_theta": 1e4},
        {"rope_type": "yarn", "rope_theta": 1e4},
        {"rope_type": "mrope", "rope_theta": 1e4, "mrope_section": [1, 2]},
    ],
)
def test_a_rope_that_cannot_be_built_is_a_config_error(
    tmp_path: Path, parameters_of_rope: dict[str, Any]
) -> None:
    """Unknown type, or settings missing; told before a weights file is looked for."""
    raw = raw_drafter("dflash", rope_parameters=parameters_of_rope)
    save_drafter(tmp_path, raw)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="rope") as caught:
        load(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert parameters_of_rope["rope_type"] in str(caught.value)
