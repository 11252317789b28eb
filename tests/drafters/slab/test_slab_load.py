"""Drafters at 4, 8 and 16 bits: the same ids, drafts nearly the same, and nothing in silence."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx
import pytest

from dflash_suite.core.checkpoint import safetensors_headers as safetensors
from dflash_suite.core.errors import OptionError, TensorError
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.core.report import Report
from dflash_suite.drafters.bundled.paths import ROOT
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.drafter import DFlashDrafter
from dflash_suite.drafters.dflash.load import load_drafter
from dflash_suite.drafters.pair import Pair, load_pair
from dflash_suite.drafters.slab import use as slab_use
from dflash_suite.drafters.slab.load import load_drafter_at
from tests.conftest import PlainReference
from tests.kit.decoding import generate
from tests.kit.slabs import counted_quantize, save_half
from tests.kit.tiny_drafter import observe_taps, random_ends, tap_rows


def load_at(checkpoint: Path, bits: int | None) -> tuple[DFlashDrafter, list[str], int]:
    """(drafter, notes, calls of mx.quantize)."""
    notes: list[str] = []
    config = read_drafter_config(checkpoint)
    with counted_quantize() as calls:
        drafter = load_drafter_at(
            config, random_ends(), mx.float32, bits, Report(note=notes.append)
        )
    return drafter, notes, calls.count


def hidden_rows(drafter: DFlashDrafter) -> mx.array:
    """What a block's rows are after some context; the same question to every drafter."""
    observe_taps(drafter, tap_rows(9))
    return drafter.block_hidden(mx.array([5]), 4)


def distance(left: mx.array, right: mx.array) -> float:
    """Relative RMS."""
    return float(mx.sqrt(mx.square(left - right).mean() / mx.square(right).mean()))


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_fewer_bits_are_nearly_the_same_drafter(tmp_path: Path, kind: Any) -> None:
    checkpoint = save_half(tmp_path / "d", kind)
    plain = load_drafter(read_drafter_config(checkpoint), random_ends(), mx.float32)
    right = hidden_rows(plain)
    found = {}
    for bits in (4, 8, 16):
        drafter, notes, _ = load_at(checkpoint, bits)
        assert drafter.bits == bits and notes == []
        found[bits] = distance(hidden_rows(drafter), right)
    assert found[16] == 0
    assert 0 < found[8] < found[4] / 4 and found[4] < 1.2, found  # random weights amplify


def test_the_default_is_4_bits_and_the_second_load_quantizes_nothing(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d")
    first, _, calls = load_at(checkpoint, None)
    assert first.bits == 4 and calls == 20
    second, notes, calls = load_at(checkpoint, None)
    assert second.bits == 4 and calls == 0 and notes == []
    assert mx.array_equal(hidden_rows(first), hidden_rows(second))


def test_biases_of_attention_are_kept(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d", "dflash", attention_bias=True)
    plain = load_drafter(read_drafter_config(checkpoint), random_ends(), mx.float32)
    packed, _, _ = load_at(checkpoint, 8)
    for layer, other in zip(plain.model.layers, packed.model.layers, strict=True):
        assert mx.array_equal(layer.self_attn.q_proj.bias, other.self_attn.q_proj.bias)
    assert 0 < distance(hidden_rows(packed), hidden_rows(plain)) < 0.05


def test_a_full_disk_means_packing_in_memory_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_half(tmp_path / "d")

    def full(*_: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(slab_use, "write_slab", full)
        in_memory, notes, _ = load_at(checkpoint, 4)
    assert len(notes) == 1 and "No space left on device" in notes[0]
    assert "in memory, for this run only" in notes[0]
    on_disk, notes, _ = load_at(checkpoint, 4)
    assert notes == [] and in_memory.bits == 4
    assert mx.array_equal(hidden_rows(in_memory), hidden_rows(on_disk))


def test_a_drafter_that_cannot_be_packed_is_used_as_it_is_with_a_note(tmp_path: Path) -> None:
    changes = {"hidden_size": 48, "intermediate_size": 96, "head_dim": 8}
    checkpoint = save_half(tmp_path / "d", "dflash", **changes)
    config = read_drafter_config(checkpoint)
    notes: list[str] = []
    ends = random_ends(hidden=48)
    drafter = load_drafter_at(config, ends, mx.float32, None, Report(note=notes.append))
    assert drafter.bits == 16
    assert len(notes) == 1 and "nothing to quantize" in notes[0] and "as it is" in notes[0]


def test_a_wrong_checkpoint_is_the_same_error_at_every_width(tmp_path: Path) -> None:
    checkpoint = save_half(tmp_path / "d")
    save_half(tmp_path / "other", "dflash")
    (tmp_path / "other" / "model.safetensors").replace(checkpoint / "model.safetensors")
    messages = set()
    for bits in (4, 8, 16):
        with pytest.raises(TensorError) as caught:
            load_at(checkpoint, bits)
        messages.add(str(caught.value))
    assert len(messages) == 1 and "missing" in messages.pop()
    assert not list(checkpoint.glob("*.slab*"))


def test_other_widths_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="drafter_bits must be 4, 8 or 16, got 5"):
        load_at(save_half(tmp_path / "d"), 5)


def test_a_second_start_reads_the_source_s_header_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the checks before the big load and for the slab's key alike, and nothing is packed."""
    load_pair(
        LoadOptions(drafter="bundled:dflash2", speculation="dflash", drafter_bits=4, exact=False)
    )
    opened: list[Path] = []
    read = safetensors.read_header_block

    def counting(stream: BinaryIO, file: Path) -> tuple[bytes, int]:
        opened.append(file)
        return read(stream, file)

    monkeypatch.setattr(safetensors, "read_header_block", counting)
    with counted_quantize() as calls:
        load_pair(
            LoadOptions(
                drafter="bundled:dflash2", speculation="dflash", drafter_bits=4, exact=False
            )
        )
    assert calls.count == 0
    drafter = ROOT / "dflash2" / "model.safetensors"
    assert [file for file in opened if file == drafter] == [drafter]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("name", "widths"), [("dflash2", (4, 8, 16)), ("dflash", (4, 16))])
def test_ids_do_not_depend_on_the_drafter_s_bits(
    bundled_pairs: Mapping[str, Pair],
    bundled_target: LoadedTarget,
    bundled_prompts: list[dict[str, Any]],
    plain_reference: PlainReference,
    name: str,
    widths: tuple[int, ...],
) -> None:
    eos = bundled_target.target.config.eos_ids
    accepted = {}
    for bits in widths:
        pair = bundled_pairs[name]
        if bits < 16:
            pair = load_pair(
                LoadOptions(
                    drafter=f"bundled:{name}",
                    speculation="dflash",
                    dtype="float32",
                    drafter_bits=bits,
                    exact=False,
                )
            )
        accepted[bits] = 0
        for line in bundled_prompts[:1]:
            generation = generate(
                pair, line["prompt_ids"], GenerateOptions(max_tokens=32, gate=False)
            )
            for _ in generation:
                pass
            ids = generation.emitter.token_ids
            plain = plain_reference(line["prompt_ids"], 32)
            assert ids == cut(plain, eos), (name, bits, line["name"])
            assert 0 < generation.stats.accepted < generation.stats.drafted
            accepted[bits] += generation.stats.accepted
    assert min(accepted.values()) > 0.7 * max(accepted.values()), accepted


def cut(ids: list[int], eos: frozenset[int]) -> list[int]:
    """Up to the first end-of-sequence id."""
    for index, token in enumerate(ids):
        if token in eos:
            return ids[: index + 1]
    return ids
