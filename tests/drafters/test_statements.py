"""What is said of a drafter and of a request is so: bits, labels, packings, notes, memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.core.errors import ConfigError, SlabError, TensorError
from dflash_suite.core.options import QuantizeOptions
from dflash_suite.core.report import Report
from dflash_suite.core.sampling_options import SamplingOptions
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.load import check_source, load_drafter
from dflash_suite.drafters.dflash.packed import most_bits
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.mtp.load import load_head
from dflash_suite.drafters.quantize import quantize_drafter
from dflash_suite.drafters.request import Request
from tests.drafters.test_sessions import Pieces, make_engine
from tests.kit.tiny import make_target, prompt
from tests.kit.tiny_drafter import save_drafter
from tests.kit.tiny_mtp import found, head_tensors, prefixed, save_target, tiny_target

NOTED: list[str] = []
REPORT = Report(NOTED.append, lambda *_: None, lambda *_: None)


def edit(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def rewrite(file: Path, change: Any) -> str:
    """The tensors after `change`, which names the one that it spoilt."""
    loaded = mx.load(str(file))
    assert isinstance(loaded, dict)
    arrays = dict(loaded)
    name: str = change(arrays)
    mx.eval(arrays)
    mx.save_safetensors(str(file), arrays)
    return name


def spoil(part: str, value: float) -> Any:
    def change(arrays: dict[str, mx.array]) -> str:
        name = next(one for one in sorted(arrays) if part in one)
        flat: Any = arrays[name].reshape(-1).tolist()
        arrays[name] = mx.array([*flat[:-1], value]).reshape(arrays[name].shape)
        return name

    return change


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64, bias=False)
        self.big = [nn.QuantizedLinear(64, 512, bias=False, bits=4) for _ in range(3)]


def test_the_bits_of_a_drafter_are_those_of_most_weights() -> None:
    """A 4-bit drafter whose `fc` is kept was called 16-bit."""
    model = Mixed()
    assert most_bits(model) == 4
    model.big = [nn.QuantizedLinear(64, 512, bias=False, bits=8)]
    assert most_bits(model) == 8
    model.big = []
    assert most_bits(model) == 16


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["hidden_norm", "mlp.up_proj"])
def test_a_drafter_with_values_that_are_no_numbers(part: str, value: float, tmp_path: Path) -> None:
    """It loaded, none of its drafts was kept, and quantize made a slab of it."""
    directory = save_drafter(tmp_path)
    name = rewrite(directory / "model.safetensors", spoil(part, value))
    with pytest.raises(TensorError, match=name):
        quantize_drafter(str(directory), QuantizeOptions(), REPORT, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    target = make_target("dense")
    with pytest.raises(TensorError, match="NaN or infinity"):
        load_drafter(read_drafter_config(directory), target, mx.float32)


def test_an_mtp_head_with_values_that_are_no_numbers(tmp_path: Path) -> None:
    tensors = head_tensors()
    tensors["fc.weight"] = tensors["fc.weight"] * float("nan")
    save_target(tmp_path, prefixed(tensors))
    target = tiny_target(tmp_path)
    with pytest.raises(TensorError, match="fc.weight"):
        load_head(found(target.config), target, mx.float32)


def test_what_is_quantized_is_not_packed_again(tmp_path: Path) -> None:
    """`--out DIR` said "nothing to do", exit 0, and made no DIR."""
    source = save_drafter(tmp_path / "drafter")
    packed = tmp_path / "packed"
    assert quantize_drafter(str(source), QuantizeOptions(), REPORT, out=packed) is not None
    with pytest.raises(SlabError, match="quantized already"):
        quantize_drafter(str(packed), QuantizeOptions(8), REPORT, out=tmp_path / "more")
    assert quantize_drafter(str(packed), QuantizeOptions(), REPORT) is None
    done = CliRunner().invoke(app, ["doctor", str(packed)])
    assert "PASS packing 4 bits in groups of 64, affine" in " ".join(done.stdout.split())


BLOCK = {"bits": 4, "group_size": 64}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"nowhere.proj": BLOCK}, TensorError, "no such module"),
        ({"fc": {"bits": 8, "group_size": 64}}, TensorError, "config.json says 8 bits in groups"),
        ({"fc": False}, TensorError, "config.json says that it is not"),
        ({"norm2": False}, TensorError, "no such module"),
    ],
)
def test_overrides_that_are_not_so_are_named(
    changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    source = save_drafter(tmp_path / "drafter")
    quantize_drafter(str(source), QuantizeOptions(), REPORT, out=packed)
    block = {**json.loads((packed / "config.json").read_text())["quantization"], **changes}
    edit(packed, quantization=block, quantization_config=block)
    with pytest.raises(error, match=words) as caught:
        check_source(read_drafter_config(packed))
    assert "Packing(" not in str(caught.value)


def test_two_blocks_that_disagree(tmp_path: Path) -> None:
    directory = save_drafter(tmp_path)
    edit(directory, quantization=BLOCK, quantization_config={"bits": 8, "group_size": 64})
    with pytest.raises(ConfigError, match="disagree"):
        read_drafter_config(directory)


def test_a_label_of_another_kind_is_said(tmp_path: Path) -> None:
    directory = save_drafter(tmp_path)
    edit(directory, architectures=["DFlashDraftModel"])
    config = read_drafter_config(directory)
    assert config.kind == "dflash2" and "it is run as dflash2" in config.label_note
    done = CliRunner().invoke(app, ["doctor", str(directory)])
    assert "WARN kind" in done.stdout


def test_options_that_cannot_act_are_named() -> None:
    said = SamplingOptions(top_k=5, seed=5, penalty_window=3).idle()
    assert said[0].startswith("--top-k, --seed do nothing without a temperature")
    assert said[1] == "--penalty-window does nothing without a penalty"
    assert SamplingOptions(top_p=0.9).idle()[0].startswith("--top-p does nothing")
    assert SamplingOptions(temperature=1, top_k=5, seed=1).idle() == []
    assert SamplingOptions(penalty_window=3, presence_penalty=0.1).idle() == []


def test_notes_stand_in_the_document_too() -> None:
    call = ["generate", "--raw", "x", "-n", "2", "-s", "none", "--top-k", "5"]
    call += ["--drafter-bits", "8", "--mtp-hidden", "pre", "--block-size", "4"]
    done = CliRunner().invoke(app, [*call, "--json"])
    notes = json.loads(done.stdout)["notes"]
    for option in ("--top-k", "--drafter-bits", "--mtp-hidden", "--block-size"):
        assert any(option in note for note in notes), option
    text = CliRunner().invoke(app, call)
    assert all(note in " ".join(text.stderr.split()) for note in notes)


def test_peak_memory_is_that_of_the_request(tmp_path: Path) -> None:
    """It was the process's so far."""
    engine: Engine = make_engine(tmp_path, "dense")
    assert isinstance(engine.tokenizer, Pieces)
    large = mx.zeros((64, 1024, 1024))
    mx.eval(large)
    before = mx.get_peak_memory()
    del large
    done = engine.complete(Request(prompt(5), max_tokens=3, speculation="none"))
    assert done.stats.peak_memory_bytes < before - 200_000_000
